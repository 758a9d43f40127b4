"""Every causal language model that transformers registers is counted exactly or refused by name.

A tiny one of each family is built; its parameters and its cache after a prompt are what we count,
also with each switch of the configuration turned.
"""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qkvary.arch.families.table import FAMILIES, MULTIMODAL, read_model
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes
from qkvary.costs.parameters import model_parameters
from tests.arch.families.tiny_configs import tiny
from tests.contracts.transformers_cases import CASES

TOKENS = 13
REGISTERED = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

# fmt: off
ENCODERS = [
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie",
    "megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer",
    "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod", "reformer",
]
"""Encoders of masked tokens, which can be asked to decode."""
DECODERS = [
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "git", "marian", "mbart",
    "moshi", "musicgen", "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "trocr",
]
"""Decoders of models with an encoder, or of sound."""
OTHERS = [
    "blt", "cpmant", "gemma4_assistant", "gemma4_unified_assistant", "inkling2_text",
    "inkling_text", "mimo_v2_flash", "minimax_m3_vl_text", "mllama", "qwen4_exp",
    "qwen4_exp_text", "zamba", "zamba2", "zaya",
]
"""Language models with a mechanism that is not counted yet."""
# fmt: on
REFUSED = {*ENCODERS, *DECODERS, *OTHERS}

NESTED = {
    *("dots3_note", "emu3", "fuyu", "gemma3n", "got_ocr2", "llama4"),
    *("moss_transcribe_diarize", "qwen3_5", "qwen3_5_moe"),
}
"""Models of several modalities whose text section is of a family that is counted."""
RENAMED = {"gpt-sw3": "gpt2"}
"""Names under which transformers registers another family's configuration."""

COUNTED = [
    family
    for family in REGISTERED
    if family in FAMILIES and family not in MULTIMODAL and family != "whisper"
]
STATES = ("conv1d_state", "recurrent_states")
"""The names of states that modules of RecurrentGemma keep."""
TOWER = "embed_tokens_extend"
"""Parameters of a vision and an audio tower next to the language model."""
STORES_NOTHING = {"openai-gpt"}
"""Families without a cache in transformers."""
STORES_MORE = {"gpt_neo": "all tokens of layers with a window"}
"""Where the cache of transformers holds more than has to be."""

# fmt: off
SWITCHES = [
    "alibi", "attention_bias", "attention_out_bias", "bias", "block_auto_adjust_ff_dim",
    "conv_bias", "do_layer_norm_before", "gating", "lm_head_bias", "mamba_conv_bias",
    "mamba_proj_bias", "mamba_rms_norm", "mlp_bias", "moe_num_shared_experts", "multi_query",
    "n_shared_experts", "new_decoder_architecture", "num_shared_experts", "parallel_attn",
    "projectors_bias", "qk_layernorm", "qkv_bias", "tie_word_embeddings", "use_attention_gate",
    "use_bias", "use_conv_bias", "use_parallel_residual", "use_post_norm", "use_qk_norm",
    "use_qkv_bias", "use_sandwich_norm", "use_sliding_window",
]
"""Fields that add or remove parameters."""
# fmt: on
UNBUILT = {
    ("dbrx", "tie_word_embeddings"),
    ("internlm3", "attention_bias"),
    ("internlm3", "mlp_bias"),
}
"""Combinations that transformers refuses."""
NAMED_REFUSALS = {
    ("deepseek_v4", "n_shared_experts"),
    ("laguna", "gating"),
}
"""Combinations that we refuse by the name of the field."""


def turned(family: str) -> list[tuple[str, Any]]:
    usual = tiny(family).to_dict()
    found: list[tuple[str, Any]] = []
    for name in SWITCHES:
        value = usual.get(name)
        if name in usual and (family, name) not in UNBUILT and isinstance(value, int | None):
            found.append((name, not value if isinstance(value, bool) else (value or 0) + 1))
    return found


def saved(config: PretrainedConfig, *, short: bool = False) -> dict[str, Any]:
    """The configuration as a file, with every field or with those that are not usual."""
    content = json.loads(config.to_json_string(use_diff=short))
    return {**content, "model_type": config.model_type}


def numbers(config: PretrainedConfig) -> int:
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(config)
    parts = {name: part.numel() for name, part in model.named_parameters()}
    return sum(size for name, size in parts.items() if TOWER not in name)


def stored(found: object, seen: dict[int, int]) -> int:
    """The numbers of all tensors inside a cache, each once; positions are no entries."""
    if isinstance(found, Tensor):
        if found.is_floating_point() and found.dim():
            seen[id(found)] = math.prod(found.shape)
    elif isinstance(found, list | tuple):
        for item in found:
            stored(item, seen)
    elif type(found).__module__.startswith("transformers.") and not isinstance(found, type):
        for item in vars(found).values():
            stored(item, seen)
    elif isinstance(found, dict):
        for item in found.values():
            stored(item, seen)
    return sum(seen.values())


def cached(model: Model) -> int:
    return sum(layerwise_cache_bytes(model, context=TOKENS, stored_as="fp32")) // 4


def test_every_family_is_counted_or_refused_by_name() -> None:
    known = {*COUNTED, *NESTED, *RENAMED, *(MULTIMODAL & {*REGISTERED}), "whisper"}
    assert known.isdisjoint(REFUSED)
    assert known | REFUSED == {*REGISTERED}


def test_what_is_not_counted_is_refused() -> None:
    for family in REFUSED:
        with pytest.raises(ValueError, match="model_type"):
            read_model({"model_type": family, "hidden_size": 64}, family)


# ``test_families_equal_transformers`` compares the others, with more of their choices.
ONCE = [family for family in COUNTED if family not in CASES]


@pytest.mark.parametrize("family", ONCE)
def test_parameters(family: str) -> None:
    config = tiny(family)
    assert model_parameters(read_model(saved(config), family)).total == numbers(config)
    assert read_model(saved(config, short=True), family).layers == (
        read_model(saved(config), family).layers
    )


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.slow if place % 4 else ())
        for place, family in enumerate(COUNTED)
    ],
)
def test_parameters_with_each_switch(family: str) -> None:
    for name, value in turned(family):
        config = tiny(family, **{name: value})
        if (family, name) in NAMED_REFUSALS:
            with pytest.raises(ValueError, match=name):
                read_model(saved(config), family)
            continue
        counted = model_parameters(read_model(saved(config), family)).total
        assert counted == numbers(config), (name, value)


INSIDE = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text")
"""Language models of vision models."""
NAMED_OTHERWISE = ("emu3_text_model", "kimi_k2", "phi4mm", "qwen2_vl", "qwen2_5_vl")
"""Other names of families that are counted."""


@pytest.mark.parametrize("family", INSIDE)
def test_language_models_of_vision_models(family: str) -> None:
    """They are no causal language models there; without a head of their own."""
    config = tiny(family)
    with torch.device("meta"):
        model: nn.Module = AutoModel.from_config(config)
    counted = model_parameters(read_model(saved(config), family)).total
    is_tied = getattr(config, "tie_word_embeddings", False)
    head = 0 if is_tied else config.vocab_size * config.hidden_size
    assert counted - head == sum(part.numel() for part in model.parameters())
    whole = read_model({**saved(config), "vision_config": {"depth": 2}}, family)
    assert any("vision or audio tower is not counted" in note for note in whole.notes)


@pytest.mark.parametrize("family", ONCE)
def test_a_cache_after_a_prompt(family: str) -> None:
    config = tiny(family)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    given = {"past_key_values": DynamicCache(config=config)} if family == "recurrent_gemma" else {}
    with torch.no_grad():
        output = model(torch.arange(3, 3 + TOKENS)[None], use_cache=True, **given)
    names = ("past_key_values", "cache_params", "state")
    held = [getattr(output, name, None) for name in names]
    if given:
        # The states are kept by the modules.
        modules = [vars(part) for part in model.modules()]
        states = [[part.get(name) for part in modules] for name in STATES]
        held = [given, states]
    counted = cached(read_model(saved(config), family))
    if family in STORES_NOTHING:
        assert counted == 6 * 2 * TOKENS * config.n_embd
        assert held == [None] * len(held)
    elif family in STORES_MORE:
        assert counted < stored(held, {})
    else:
        assert counted == stored(held, {})
