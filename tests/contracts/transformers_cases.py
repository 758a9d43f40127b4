"""Tiny configurations of every family, as transformers builds them, and their parameters.

Sizes are those of ``tiny_configs``, with fewer layers; windows are both shorter and longer than
what is decoded. ``model_type`` is the key; everything else stands in the configuration.
"""

import json
from typing import Any

from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qkvary.arch.families.table import FAMILIES, MULTIMODAL
from tests.arch.families.tiny_configs import tiny_fields

Config = dict[str, Any]
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


def few(family: str, **changes: Any) -> Config:
    """The fields of a family with three layers, unless other ones are asked for."""
    fields = tiny_fields(family, **changes)
    text = fields.get("text_config", fields)
    text.update({name: 3 for name in LAYERS if name in text and name not in changes})
    return fields


TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
SEVEN: Config = {"num_hidden_layers": 7, "layer_types": [*TYPES, *TYPES, "full_attention"]}
GEMMA4: Config = {"sliding_window": 5, "global_head_dim": 22, "hidden_size_per_layer_input": 0}
EQUAL: Config = {**GEMMA4, **SEVEN, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
SHARED: Config = {
    **GEMMA4,
    **SEVEN,
    "hidden_size_per_layer_input": 11,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
}
LATENT: Config = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
}
SUMMARIES: Config = {
    "num_hidden_layers": 4,
    "head_dim": 22,
    "partial_rotary_factor": 4 / 22,
    "qk_rope_head_dim": 4,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 5},
    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
    "hc_mult": 2,
    "sliding_window": 4,
    "o_groups": 2,
    "o_lora_rank": 11,
    "index_n_heads": 2,
    "index_head_dim": 10,
    "index_topk": 2,
}
T5: Config = {
    "vocab_size": 97,
    "d_model": 26,
    "d_kv": 7,
    "d_ff": 17,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 5,
    "relative_attention_num_buckets": 12,
    "decoder_start_token_id": 0,
}
WHISPER: Config = {
    "vocab_size": 97,
    "d_model": 26,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 13,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 11,
    "num_mel_bins": 5,
    "max_source_positions": 7,
    "max_target_positions": 31,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}


LISTED: dict[str, list[Config]] = {
    "gpt2": [{}, {"n_inner": 17, "tie_word_embeddings": False}],
    "gpt_neox": [{}, {"attention_bias": False, "rotary_pct": 0.5, "tie_word_embeddings": True}],
    "opt": [
        {},
        {"do_layer_norm_before": False, "word_embed_proj_dim": 13},
        {"_remove_final_layer_norm": True, "tie_word_embeddings": False},
        {"enable_bias": False, "layer_norm_elementwise_affine": False},
    ],
    "bloom": [{}, {"tie_word_embeddings": False}],
    "falcon": [
        {},
        {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": 17},
        {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
        {"multi_query": False, "tie_word_embeddings": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ],
    "phi": [
        {"num_key_value_heads": 4},
        {"partial_rotary_factor": 0.4, "qk_layernorm": True, "tie_word_embeddings": True},
    ],
    "mixtral": [
        {"sliding_window": None},
        {"num_local_experts": 3, "sliding_window": 7, "tie_word_embeddings": True},
    ],
    "qwen3_moe": [
        {"num_experts": 5},
        {
            "num_experts": 5,
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ],
    "gemma4_text": [
        {**GEMMA4, "num_hidden_layers": 7},
        EQUAL,
        {**EQUAL, "attention_bias": True, "num_global_key_value_heads": None},
        {**SHARED, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        SHARED,
        {**GEMMA4, "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2},
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "per_layer_config": {5: {"head_dim": 10, "num_key_value_heads": 1}},
            "tie_word_embeddings": False,
        },
    ],
    "gemma4_unified_text": [EQUAL],
    "gemma3": [{}],
    "gemma4": [EQUAL],
    "gemma4_unified": [EQUAL],
    "deepseek_v2": [
        {**LATENT, "topk_method": "group_limited_greedy"},
        {
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
        },
    ],
    "deepseek_v3": [LATENT, {"first_k_dense_replace": 3, "attention_bias": True}],
    "deepseek_v4": [SUMMARIES, {**SUMMARIES, "mlp_bias": True, "tie_word_embeddings": True}],
}
CASES: dict[str, list[Config]] = {
    **{name: [few(name, **changes) for changes in every] for name, every in LISTED.items()},
    "t5": [T5, {**T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": None}],
    "whisper": [WHISPER, {**WHISPER, "decoder_attention_heads": 2}],
}
"""Configurations by family, of families whose every choice is compared."""

COUNTED = [
    family
    for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if family in FAMILIES and family not in MULTIMODAL and family != "whisper"
]
"""Causal language models that transformers registers and that are counted."""
ONCE = {family: [tiny_fields(family)] for family in COUNTED if family not in CASES}
"""One configuration of each other family."""
INSIDE = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen3_vl_moe_text")
"""Language models of vision models."""
NAMED_OTHERWISE = ("emu3_text_model", "kimi_k2", "phi4mm", "qwen2_vl", "qwen2_5_vl")
"""Other names of families that are counted."""

COMPRESSED, GEMMA4_EQUAL = CASES["deepseek_v4"][0], CASES["gemma4_text"][1]
HOLDS_MORE: dict[str, str] = {
    "falcon": "the new decoder repeats keys and values for every query head before it stores them",
    "deepseek_v4": "stores the shared tensor of layers without summaries as keys and as values",
    "gpt_neo": "caches all tokens, even in layers with a window",
}
"""Families where a cache holds entries that theory does not ask for; the test has the bytes."""
STORES_NOTHING = {"openai-gpt": "has no cache in transformers"}


def saved(config: PretrainedConfig, *, short: bool = False) -> Config:
    """The configuration as a file, with every field or with those that are not usual."""
    content = json.loads(config.to_json_string(use_diff=short))
    return {**content, "model_type": config.model_type}


def count_parameters(model: nn.Module) -> int:
    """Those of the language model, next to which a vision and an audio tower may stand."""
    parts = {name: part.numel() for name, part in model.named_parameters()}
    return sum(size for name, size in parts.items() if "embed_tokens_extend" not in name)
