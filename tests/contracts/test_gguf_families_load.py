"""Files of llama.cpp compute what transformers computes, for every architecture that is read.

The files are written as llama.cpp's converter does: names of tensors by its package, gains of Gemma
with one added, rows of Llama's queries and keys as neighbouring pairs, frequencies of Llama 3
divided in a tensor.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from qkvary.arch.models import as_model
from qkvary.checkpoints.catalog import find_reference, load_checkpoint
from qkvary.checkpoints.gguf.configs import FAMILIES
from qkvary.costs.parameters import model_parameters
from qkvary.nn.cache import KVCache
from tests.contracts.test_families_load import CASES as LOADED
from tests.contracts.test_families_load import (
    ROUNDING,
    TOKENS,
    Config,
    build_model,
    distance,
    draw_tokens,
    gemma3_turned,
    turned,
)
from tests.contracts.variant_cases import feed_network

CASES: dict[str, list[Config]] = {
    "llama": [
        *(LOADED["llama"][index] for index in (0, 4)),
        {"attention_bias": True, **turned(rope_theta=90.0)},
    ],
    "qwen2": [LOADED["qwen2"][index] for index in (0, 2)],
    "qwen3": [{"tie_word_embeddings": True}, turned(rope_type="linear", factor=3.0)],
    "phi3": [{"head_dim": 12}, {**LOADED["phi3"][2], "sliding_window": 5}],
    "olmo2": LOADED["olmo2"][:1],
    "smollm3": LOADED["smollm3"][2:],
    "starcoder2": LOADED["starcoder2"][:1],
    "stablelm": LOADED["stablelm"],
    "gptneox": [
        LOADED["gpt_neox"][0],
        {**LOADED["gpt_neox"][0], "use_parallel_residual": False},
    ],
    "gemma": LOADED["gemma"][:1],
    "gemma2": [
        LOADED["gemma2"][2],
        # The largest one scales scores by its width.
        {"num_hidden_layers": 46, "query_pre_attn_scalar": 12, "sliding_window": 5},
    ],
    "gemma3": [{**LOADED["gemma3_text"][2], **gemma3_turned(10_000.0)}],
}
ALL = [(name, config) for name, configs in CASES.items() for config in configs]


def permute(weight: Tensor, heads: int) -> Tensor:
    """The rows of each head with its two halves in turn, as llama.cpp's converter writes them."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def tensors(name: str, model: Any) -> Iterator[tuple[str, Tensor]]:
    config, kinds = model.config, gguf.MODEL_ARCH_NAMES.items()
    arch = next(kind for kind, written in kinds if written == name)
    known = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    heads = heads if name in ("llama", "smollm3") else {}
    for own, values in model.state_dict().items():
        if config.tie_word_embeddings and own == "lm_head.weight":
            continue
        changed = values
        for part, count in heads.items():
            changed = permute(values, count) if part in own else changed
        if "gemma" in name and "norm" in own:
            changed = values + 1
        if "query_key_value" in own:
            changed = values.unflatten(0, (config.num_attention_heads, 3, -1))
            changed = changed.transpose(0, 1).flatten(0, 2)
        written = known.get_name(own, try_suffixes=(".weight", ".bias"))
        assert written is not None, own
        yield written, changed


def write(path: Path, name: str, model: Any) -> None:
    config, writer = model.config, gguf.GGUFWriter(path, name)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turns = config.rope_parameters
    turns = turns.get("full_attention", turns)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if name == "gptneox":
        writer.add_parallel_residual(config.use_parallel_residual)
        size = config.hidden_size // config.num_attention_heads
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(size)
        writer.add_value_length(size)
    if name == "stablelm":
        writer.add_parallel_residual(use=False)
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_eps(getattr(config, "layer_norm_eps", 1e-5))
    writer.add_rope_freq_base(turns["rope_theta"])
    share = turns.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(size * share))
    if getattr(config, "sliding_window", None) and name in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    form = turns["rope_type"]
    if form in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(form))
        writer.add_rope_scaling_factor(turns["factor"])
    if form in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(turns["original_max_position_embeddings"])
    if form == "llama3":
        plain = turns["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
        found = model.model.rotary_emb.inv_freq.double()
        writer.add_tensor("rope_freqs.weight", (plain / found).float().numpy())
    if form == "longrope":
        writer.add_rope_scaling_attn_factors(float(model.model.rotary_emb.attention_scaling))
        for kind in ("long", "short"):
            divisors = np.array(turns[f"{kind}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", divisors)
    for written, values in tensors(name, model):
        writer.add_tensor(written, values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_architecture_has_a_case() -> None:
    assert set(CASES) == set(FAMILIES)


@torch.no_grad()
@pytest.mark.parametrize(("name", "config"), ALL)
def test_logits_are_those_of_transformers(name: str, config: Config, tmp_path: Path) -> None:
    model, tokens = build_model(FAMILIES[name], config), draw_tokens()
    write(tmp_path / "a.gguf", name, model)
    network = load_checkpoint(tmp_path / "a.gguf").network
    expected = model(tokens).logits
    rounding = ROUNDING * max(1, network.config.num_layers / 10)
    assert distance(network(tokens), expected) < rounding
    cache = KVCache(network.config.layers, max_tokens=TOKENS)
    assert distance(feed_network(network, tokens, 9, cache), expected) < rounding
    # From the header alone.
    found = model_parameters(find_reference(tmp_path / "a.gguf"))
    assert found == model_parameters(as_model(network.config))
    assert found.total == sum(one.numel() for one in model.parameters())
