"""Tiny configurations of every family, as transformers builds them: at least one each.

Sizes are distinct, and primes where the mathematics allows; windows are both shorter and longer
than what is decoded. ``model_type`` is the key; everything else stands in the configuration.
"""

from typing import Any

Config = dict[str, Any]

ROTARY: Config = {
    "vocab_size": 97,
    "hidden_size": 44,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 71,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED: Config = {**ROTARY, "hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3}
GPT2: Config = {
    "vocab_size": 97,
    "n_embd": 26,
    "n_layer": 3,
    "n_head": 2,
    "n_positions": 31,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPT: Config = {
    "vocab_size": 97,
    "hidden_size": 26,
    "ffn_dim": 17,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 31,
}
BLOOM: Config = {"vocab_size": 97, "hidden_size": 26, "n_layer": 3, "n_head": 2}
FALCON: Config = {
    "vocab_size": 97,
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 71,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: Config = {**GROUPED, "num_experts_per_tok": 2}
QWEN_EXPERTS: Config = {**EXPERTS, "num_experts": 5, "moe_intermediate_size": 7}

CASES: dict[str, list[Config]] = {
    "gpt2": [GPT2, {**GPT2, "n_inner": 17, "tie_word_embeddings": False}],
    "gpt_neox": [
        ROTARY,
        {**ROTARY, "attention_bias": False, "rotary_pct": 0.5, "tie_word_embeddings": True},
    ],
    "opt": [
        OPT,
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 13},
        {**OPT, "_remove_final_layer_norm": True, "tie_word_embeddings": False},
        {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False},
    ],
    "bloom": [BLOOM, {**BLOOM, "tie_word_embeddings": False}],
    "falcon": [
        FALCON,
        {**FALCON, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 17},
        {**FALCON, "multi_query": False, "alibi": True, "parallel_attn": False, "bias": True},
        {**FALCON, "multi_query": False, "tie_word_embeddings": False},
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ],
    "phi": [
        {**ROTARY, "hidden_size": 40},
        {
            **ROTARY,
            "hidden_size": 40,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": True,
            "tie_word_embeddings": True,
        },
    ],
    "llama": [
        ROTARY,
        {**GROUPED, "attention_bias": True, "head_dim": 14},
        {**GROUPED, "mlp_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 1},
    ],
    "mistral": [
        {**GROUPED, "sliding_window": 5},
        {**GROUPED, "sliding_window": 67, "head_dim": 14},
        {**GROUPED, "sliding_window": None, "tie_word_embeddings": True},
        GROUPED,
    ],
    "mixtral": [
        {**EXPERTS, "num_local_experts": 5},
        {**EXPERTS, "num_local_experts": 3, "sliding_window": 7, "tie_word_embeddings": True},
    ],
    "qwen2": [
        GROUPED,
        {**GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {
            **GROUPED,
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
        {**GROUPED, "use_sliding_window": False, "sliding_window": 5},
    ],
    "qwen3": [
        GROUPED,
        {
            **GROUPED,
            "head_dim": 14,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
    ],
    "qwen3_moe": [
        QWEN_EXPERTS,
        {
            **QWEN_EXPERTS,
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "head_dim": 14,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ],
    "phi3": [
        GROUPED,
        {
            **GROUPED,
            "sliding_window": 5,
            "partial_rotary_factor": 0.6,
            "tie_word_embeddings": True,
        },
    ],
}
"""Configurations by family."""

HOLDS_MORE: dict[str, str] = {
    "falcon": "the new decoder repeats keys and values for every query head before it stores them",
}
"""Families where a cache holds entries that theory does not ask for; the test has the bytes."""

UNCOUNTED_MACS: dict[str, str] = {}
"""Families whose forward pass multiplies what the cost model does not count, and what that is."""
