"""A character model agrees with its reference, and a damaged one is rejected."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.formats.char_gpt import load
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError
from tests.checkpoints.published_models import KINDS, find_model, read_reference
from tests.reference import char_gpt

CONFIG = char_gpt.CONFIG
WEIGHTS = char_gpt.make_weights(CONFIG)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_reference_to_the_printed_digits(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = find_model("shakespeare_char_mha", kind, tmp_path_factory)
    reference = read_reference(folder)
    expected = torch.tensor(reference["logits_after_prompt"], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        network, tokenizer = load(folder)
        assert tokenizer is not None
        prompt = torch.tensor([tokenizer.encode(reference["greedy"]["prompt"])])
        with torch.inference_mode():
            found = network.to(dtype)(prompt)[0, -1]
        assert (found.double() - expected).abs().max() < 1e-5


def write(folder: Path, config: dict[str, Any], weights: dict[str, Any] | None = None) -> Path:
    made = char_gpt.make_weights(config, seed=3) if weights is None else weights
    (folder / "model.safetensors").write_bytes(char_gpt.pack(made))
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_shared_heads_equal_the_loops(tmp_path: Path) -> None:
    config = {**CONFIG, "num_heads": 6, "num_kv_heads": 2, "head_dim": 3}
    network = load(write(tmp_path, config)).network.double()
    tokens = [3, 0, 12, 7, 7, 1]
    with torch.inference_mode():
        found = network(torch.tensor([tokens]))[0].numpy()
    expected = char_gpt.logits(config, char_gpt.make_weights(config, seed=3), tokens)
    assert np.abs(found - expected).max() / expected.std() < 1e-12


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"vocab_size": 0}, DamagedError, "expected a whole number in 1 ... 2^40 for vocab_size"),
        ({"num_layers": 10**6}, DamagedError, "layers, got 1000000"),
        ({"num_layers": 3}, DamagedError, "but its configuration requires"),
        ({"num_kv_heads": 3}, DamagedError, "not describe a network: expected KV heads that"),
        ({"chars": "aa"}, DamagedError, "expected an alphabet of distinct characters"),
        ({"chars": "ab"}, DamagedError, "has a vocabulary of 13 tokens, but its tokenizer has 2"),
        ({"ffn_activation": "gelu"}, UsageError, "has ffn_activation 'gelu', expected 'relu'"),
    ],
)
def test_invalid_configurations_are_rejected(
    changes: dict[str, Any], error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    write(tmp_path, {**CONFIG, **changes}, WEIGHTS)
    with pytest.raises(error) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400
