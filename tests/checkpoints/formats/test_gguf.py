"""GGUF files as checkpoints: what is not computed here is refused, damage is one sentence."""

from pathlib import Path
from typing import Any

import pytest
import torch

from qkvary.checkpoints.catalog import find_reference
from qkvary.checkpoints.formats.gguf import load
from qkvary.checkpoints.gguf.export import GgufNetwork, convert_network
from qkvary.checkpoints.gguf.files import Tensor, pack_file
from qkvary.checkpoints.gguf.vocabularies import convert_tokenizer
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError
from tests.checkpoints.gguf.test_networks import PORTABLE, build_portable

NETWORK = LanguageModel(d_model=8, num_heads=2, num_layers=2, vocabulary=13, max_tokens=11).eval()
TOKENIZER = CharacterTokenizer("abcdefgh,.é", has_separator=True)
WRITTEN = convert_network(NETWORK, "f32")
METADATA = {**WRITTEN.metadata, **convert_tokenizer(TOKENIZER, 13).metadata}
LATENT = convert_network(build_portable(PORTABLE[0]), "f32")
PAIRS = {"tokenizer.ggml.tokens": ["ab"] * 13}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UsageError, "architecture 'mamba'; choices:"),
        ({"llama.block_count": 3}, DamagedError, "lacks the tensor blk.2.attn_norm.weight"),
        ({"llama.block_count": 10**6}, DamagedError, "states 1,000,000 layers, but has only"),
        ({"llama.attention.head_count_kv": 3}, DamagedError, "does not describe a network"),
        ({"llama.rope.scaling.type": "su"}, UsageError, "has rope.scaling.type 'su', which this"),
        ({"tokenizer.ggml.model": "bert"}, UsageError, "a tokenizer of the kind 'bert'; choices"),
        ({"tokenizer.ggml.token_type": [1, 2]}, DamagedError, "has 13 tokens and 2 types"),
        (PAIRS, DamagedError, "has an invalid tokenizer"),
        ({"tokenizer.ggml.pre": "tekken", **PAIRS}, UsageError, "unknown pre-tokenizer 'tekken'"),
    ],
)
def test_another_network_is_refused(
    changes: dict[str, object], error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    found = refusal(tmp_path, {**METADATA, **changes}, WRITTEN.tensors)
    assert message in str(found)
    assert type(found) is error


def refusal(folder: Path, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> QkvaryError:
    (folder / "a.gguf").write_bytes(pack_file(metadata, tensors))
    with pytest.raises(QkvaryError) as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


UNKNOWN = {
    "rope.scaling.yarn_ext_factor": 0.5,
    "rope.scale_linear": 2.0,
    "attention.causal": False,
    "attention.sliding_window": 4,
    "expert_count": 8,
}
SCALED_LATENT = {"type": "yarn", "factor": 4.0, "attn_factor": 0.5}


@pytest.mark.parametrize(
    ("written", "key", "value", "error", "message"),
    [
        *(
            (one, key, value, UsageError, f"sets {key}, which this program does not support")
            for one in (WRITTEN, LATENT)
            for key, value in UNKNOWN.items()
        ),
        *(
            (LATENT, f"rope.scaling.{key}", value, UsageError, f"sets rope.scaling.{key}, which")
            for key, value in SCALED_LATENT.items()
        ),
        # A partial rotation is not scaled.
        (WRITTEN, "rope.scaling.factor", 4.0, UsageError, "both rope_freqs and rope.scaling"),
        (WRITTEN, "rope.scaling.factor", [4.0], DamagedError, "a number for rope.scaling.factor"),
        (WRITTEN, "rope.scaling.attn_factor", 0.5, UsageError, "has rope.scaling.attn_factor 0.5"),
    ],
)
def test_what_changes_the_computation_is_refused(
    written: GgufNetwork,
    key: str,
    value: Any,
    error: type[QkvaryError],
    message: str,
    tmp_path: Path,
) -> None:
    metadata = {**written.metadata, f"{written.metadata['general.architecture']}.{key}": value}
    found = refusal(tmp_path, metadata, written.tensors)
    assert type(found) is error
    assert message in str(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rope_freqs.weight", "rope_freqs that do not describe a partial"),
        ("a.b", "has the tensor a.b, which"),
    ],
)
def test_another_tensor_is_refused(name: str, message: str, tmp_path: Path) -> None:
    values = WRITTEN.tensors["output_norm.weight"].values[:2] * [3, 1e30]
    tensors = {**WRITTEN.tensors, name: Tensor(values, "f32")}
    (tmp_path / "a.gguf").write_bytes(pack_file(METADATA, tensors))
    with pytest.raises(UsageError, match=message):
        load(tmp_path)


def test_a_split_file_is_one(tmp_path: Path) -> None:
    """As llama.cpp splits: the metadata in the first part, each tensor in one of the parts."""
    names = list(WRITTEN.tensors)
    for number in range(3):
        some = {name: WRITTEN.tensors[name] for name in names[number::3]}
        metadata = METADATA if number == 0 else {"split.no": number}
        part = tmp_path / f"a-{number + 1:05}-of-00003.gguf"
        part.write_bytes(pack_file({**metadata, "split.count": 3}, some))
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "a.gguf").write_bytes(pack_file(METADATA, WRITTEN.tensors))
    whole = load(tmp_path / "whole").network
    for given in (tmp_path, *tmp_path.glob("*.gguf")):
        found = load(given).network
        assert found.config == whole.config
        assert all(map(torch.equal, found.parameters(), whole.parameters()))
        assert find_reference(given).layers == find_reference(tmp_path / "whole").layers
    again = (tmp_path / "a-00002-of-00003.gguf").read_bytes()
    (tmp_path / "a-00003-of-00003.gguf").write_bytes(again)
    with pytest.raises(DamagedError, match="two tensors"):
        load(tmp_path)
    (tmp_path / "a-00003-of-00003.gguf").unlink()
    with pytest.raises(DamagedError, match=r"3 parts, but a-00003-of-00003\.gguf is missing"):
        load(tmp_path)
