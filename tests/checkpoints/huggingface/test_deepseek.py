"""Our networks as DeepSeek V3 of transformers: equal logits, an equal cache, and back."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from qkvary.arch.attention import KV_NORM_EPS
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.huggingface.stock import export_stock
from qkvary.checkpoints.latent_networks import STILL
from qkvary.checkpoints.models import LoadedModel
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, UsageError
from tests.checkpoints.equal_networks import same_weights
from tests.checkpoints.gguf.test_networks import PORTABLE, build_portable
from tests.checkpoints.huggingface.causal_models import prompt
from tests.checkpoints.huggingface.test_stock import in_double_precision
from tests.contracts.variant_cases import GATE, distance

TOKENS = 11


@pytest.mark.parametrize("label", PORTABLE)
@torch.no_grad()
def test_deepseek_gives_equal_logits(label: str) -> None:
    network = build_portable(label, tied_head="MQA" not in label).double()
    stock = export_stock(network)
    assert stock.config.model_type == "deepseek_v3"
    tokens = prompt(3, TOKENS)
    expected = network(tokens)
    # A tensor without a norm goes through one that leaves it as it is to single precision.
    gate = GATE if "@kv-norm" in label else STILL
    assert distance(in_double_precision(stock.build())(tokens).logits, expected) < gate
    single = export_stock(network.float())
    assert distance(single.build()(tokens).logits.double(), expected) < 1e-5


@pytest.mark.parametrize(
    "label", ["Q-GQA-2@decoupled-4@kv-norm", "Q-K=V@decoupled-4@latent-9@kv-norm"]
)
@torch.no_grad()
def test_a_folder_loads_in_transformers_and_here(label: str, tmp_path: Path) -> None:
    network = build_portable(label, vocabulary=257, tied_head="GQA" in label)
    loaded = LoadedModel(network, ByteTokenizer(has_separator=True))
    exported = export_folder(loaded, tmp_path / "out", to="deepseek")
    assert exported.architecture == "DeepseekV3ForCausalLM"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__module__.startswith("transformers.models.deepseek_v3")
    tokens = prompt(2, TOKENS)
    found = model(tokens, use_cache=True)
    assert distance(found.logits.double(), network.double()(tokens).double()) < 1e-5
    kept = [part for layer in found.past_key_values.layers for part in (layer.keys, layer.values)]
    per_token = cache_bytes_per_token(network.config, "float32")
    assert sum(one.nbytes for one in kept) == 2 * TOKENS * (per_token or 0)
    again = load_checkpoint(tmp_path / "out")
    assert again.tokenizer is not None
    assert same_weights(again.network, network.float())


@pytest.mark.parametrize("tied_head", [True, False])
@pytest.mark.parametrize("label", ["Q-K=V@decoupled-4@latent-9", "Q-MQA@decoupled-4@kv-norm"])
@torch.no_grad()
def test_all_norms_have_one_epsilon(label: str, tied_head: bool) -> None:
    """The norm of the latent has that of the others in vLLM, and 1e-6 in transformers."""
    config = build_portable(label, tied_head=tied_head).config
    config = replace(config, block=replace(config.block, norm_eps=1e-3))
    network = LanguageModel(config).eval()
    network.embedding.mul_(0.1)
    stock = export_stock(network)
    assert stock.config.rms_norm_eps == KV_NORM_EPS
    tokens = prompt(3, TOKENS)
    assert distance(stock.build()(tokens).logits, network(tokens)) < 1e-5


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q_lora_rank": 8}, UsageError, "expected null for q_lora_rank"),
        ({"first_k_dense_replace": 1}, UsageError, "no layer has exp"),
        ({"kv_lora_rank": "x"}, UsageError, "kv_lora_rank of a deepseek_v3"),
        ({"kv_lora_rank": 13}, DamagedError, "kv_a_proj_with_mqa.weight of"),
        ({"rope_parameters": {"rope_type": "yarn"}}, UsageError, "default) for rope_type"),
        ({"rope_scaling": {"type": "yarn"}}, UsageError, "(default) for type of a"),
    ],
)
def test_another_network_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    network = build_portable("Q-GQA-2@decoupled-4@kv-norm")
    export_folder(LoadedModel(network, None), tmp_path / "out", to="deepseek")
    (tmp_path / "out" / "MANIFEST.json").unlink()
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    if "rope_scaling" in changes:
        del config["rope_parameters"]
    path.write_text(json.dumps({**config, **changes}))
    with pytest.raises(error, match=re.escape(message)) as caught:
        load_checkpoint(tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 1
