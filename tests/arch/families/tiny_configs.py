"""Tiny configurations of the causal language models that transformers registers."""

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), 64),
    **dict.fromkeys(HEADS, 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 96),
    "vocab_size": 131,
    **dict.fromkeys(LAYERS, 6),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 5),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "sliding_window": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 20,
    "v_head_dim": 10,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Fields by name; a family takes those that it knows."""

LATENT = {"head_dim": 8, "num_key_value_heads": 4}
INDEXED = {**LATENT, "index_head_dim": 16, "index_n_heads": 3}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 11, "mamba_n_groups": 2}
CHANGES: dict[str, dict[str, Any]] = {
    "axk1": LATENT,
    "glm4_moe_lite": LATENT,
    "minicpm3": LATENT,
    "youtu": LATENT,
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "deepseek_v4": {"num_key_value_heads": 1},
    "deepseek_v32": {**INDEXED, "index_topk": 4},
    "glm_moe_dsa": {**INDEXED, "index_topk": 4, "index_topk_freq": 2},
    "axk2": {**INDEXED, "gated_norm_rank": 5},
    "hy_v4": {**INDEXED, "hc_mult": 3},
    "bailing_hybrid": {**LATENT, "layer_group_size": 3},
    "longcat_flash": {**LATENT, "zero_expert_num": 0},
    "dots3_note_text": {
        **INDEXED,
        "head_dim": 20,
        "swa_num_attention_heads": 2,
        "swa_num_key_value_heads": 2,
        "swa_q_lora_rank": 18,
        "swa_kv_lora_rank": 14,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 10,
        "swa_v_head_dim": 9,
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 5, "moe_top_k": 2},
    },
    "cohere_compass_text": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10_000.0}
            for kind in ("full_attention", "sliding_attention")
        },
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "phi4_multimodal": {
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        },
        "audio_config": {"hidden_size": 32, "intermediate_size": 40, "num_blocks": 1},
    },
    "ctrl": {"dff": 96},
    "hrm_text": {"num_hidden_layers": 2},
    "modernbert-decoder": {"local_attention": 16},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "intermediate_size": [96, 80, 96, 80, 96, 80],
        "hidden_size_per_layer_input": 12,
        "vocab_size_per_layer_input": 131,
        "laurel_rank": 7,
    },
    "xlstm": {"hidden_size": 128},
    "aria_text": {"moe_num_experts": 5},
    "kimi_linear": {**LATENT, "linear_num_heads": 3, "linear_head_dim": 12},
    "bamba": {**MAMBA2, "attn_layer_indices": [2, 5]},
    "granitemoehybrid": {
        **MAMBA2,
        "layer_types": ["mamba", "attention"] * 3,
        "shared_intermediate_size": 56,
    },
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 128},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 11, "n_groups": 2},
    "nemotron_h": {
        "mamba_num_heads": 8,
        "mamba_head_dim": 10,
        "n_groups": 2,
        "ssm_state_size": 11,
        "moe_shared_expert_intermediate_size": 44,
        "hybrid_override_pattern": "ME*-M*",
    },
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 7},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3, "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "full_attention", "sliding_attention"] * 2},
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 3]], "window_size": 8},
    "qwen3_next": DELTA,
    "qwen3_5": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe": DELTA,
    "qwen3_5_moe_text": DELTA,
    "qwen2_moe": {"shared_expert_intermediate_size": 56},
    "llama4": {"intermediate_size_mlp": 72, "interleave_moe_layer_step": 2},
    "llama4_text": {"intermediate_size_mlp": 72, "interleave_moe_layer_step": 2},
    "dots1": {"n_shared_experts": 1, "first_k_dense_replace": 1},
    "gemma4_text": {"vocab_size_per_layer_input": 131, "hidden_size_per_layer_input": 12},
    "gemma4": {"vocab_size_per_layer_input": 131, "hidden_size_per_layer_input": 12},
}
"""What a family needs to be small, or to have layers of each kind."""


def tiny(model_type: str, **changes: Any) -> PretrainedConfig:
    """The configuration of a family with tiny sizes and some fields changed."""
    cls: Any = CONFIG_MAPPING[model_type]
    return cls(**tiny_fields(model_type, **changes))


def tiny_fields(model_type: str, **changes: Any) -> dict[str, Any]:
    """The fields that differ from the usual ones, those of the text in their section."""
    cls: Any = CONFIG_MAPPING[model_type]
    usual = cls()
    text = getattr(usual, "text_config", None)
    if text is None:
        return _fit(cls, usual, model_type, changes)
    fields = _fit(type(text), text, model_type, changes)
    return {"text_config": {"model_type": text.model_type, **fields}}


def _fit(cls: Any, usual: Any, model_type: str, changes: dict[str, Any]) -> dict[str, Any]:
    aliases: dict[str, str] = getattr(cls, "attribute_map", {}) or {}
    known = set(usual.to_dict()) | set(aliases)
    fields = {name: value for name, value in SIZES.items() if name in known}
    for alias, name in aliases.items():
        if alias in fields and name in fields:
            del fields[alias]
    given = {**CHANGES.get(model_type, {}), **changes}
    fields |= given
    for name in given:
        if name in aliases:
            fields.pop(aliases[name], None)
    return fields
