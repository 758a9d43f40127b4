"""Every causal language model that transformers registers is counted exactly or refused by name.

``test_families_equal_transformers`` compares a tiny one of each family; here each switch of its
configuration is turned.
"""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qkvary.arch.families.table import MULTIMODAL, read_model
from qkvary.costs.parameters import model_parameters
from tests.arch.families.tiny_configs import tiny
from tests.contracts.transformers_cases import COUNTED, INSIDE, count_parameters, saved

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


def test_every_family_is_counted_or_refused_by_name() -> None:
    known = {*COUNTED, *NESTED, *RENAMED, *(MULTIMODAL & {*REGISTERED}), "whisper"}
    assert known.isdisjoint(REFUSED)
    assert known | REFUSED == {*REGISTERED}


def test_what_is_not_counted_is_refused() -> None:
    for family in REFUSED:
        with pytest.raises(ValueError, match="model_type"):
            read_model({"model_type": family, "hidden_size": 64}, family)


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
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
        assert counted == count_parameters(built), (name, value)


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
    assert any("not a vision or audio tower" in note for note in whole.notes)
