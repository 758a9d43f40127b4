"""Tiny configurations of every family, as transformers builds them: at least one each.

Sizes are distinct, and primes where the mathematics allows; windows are both shorter and longer
than what is decoded. ``model_type`` is the key; everything else stands in the configuration.
"""

from tests.contracts import test_families_load as loaded
from tests.contracts.test_families_load import SIZES, Config

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

GEMMA: Config = {**GROUPED, "head_dim": 14}
GEMMA_TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA3: Config = {**GEMMA, "num_hidden_layers": 7, "sliding_window": 5}
GEMMA4: Config = {
    **GEMMA,
    "num_hidden_layers": 7,
    "sliding_window": 5,
    "global_head_dim": 22,
    "hidden_size_per_layer_input": 0,
}
GEMMA4_EQUAL: Config = {
    **GEMMA4,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 2,
    "layer_types": [*GEMMA_TYPES, *GEMMA_TYPES, "full_attention"],
}
GEMMA4_SMALL: Config = {
    **GEMMA4,
    "hidden_size_per_layer_input": 11,
    "vocab_size_per_layer_input": 97,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "layer_types": [*GEMMA_TYPES, *GEMMA_TYPES, "full_attention"],
}
LATENT: Config = {
    "vocab_size": 97,
    "hidden_size": 60,
    "intermediate_size": 37,
    "moe_intermediate_size": 7,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "kv_lora_rank": 14,
    "q_lora_rank": 17,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 10,
    "v_head_dim": 19,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 71,
}
COMPRESSED: Config = {
    "vocab_size": 97,
    "hidden_size": 26,
    "moe_intermediate_size": 7,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "head_dim": 22,
    "partial_rotary_factor": 4 / 22,
    "q_lora_rank": 17,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
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
    "o_groups": 3,
    "o_lora_rank": 11,
    "index_n_heads": 2,
    "index_head_dim": 10,
    "index_topk": 2,
    "max_position_embeddings": 71,
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

LOADED = {
    family: [{**SIZES, **config} for config in loaded.CASES[family]]
    for family in (
        *("gpt_neox", "llama", "mistral", "qwen2", "qwen3", "phi3"),
        *("gemma", "gemma2", "gemma3_text"),
    )
}
"""What is loaded too."""
CASES: dict[str, list[Config]] = {
    **LOADED,
    "mistral": [*LOADED["mistral"], GROUPED],
    "qwen2": [
        *LOADED["qwen2"],
        {**GROUPED, "use_sliding_window": True, "sliding_window": 7, "layer_types": GEMMA_TYPES},
        {**GROUPED, "use_sliding_window": False, "sliding_window": 5},
    ],
    "gemma2": [
        *LOADED["gemma2"],
        {**GEMMA, "sliding_window": 5, "layer_types": [*GEMMA_TYPES[1:], "full_attention"]},
    ],
    "gemma3_text": [
        *LOADED["gemma3_text"],
        {**GEMMA3, "sliding_window_pattern": 3, "attention_bias": True},
    ],
    "gpt2": [GPT2, {**GPT2, "n_inner": 17, "tie_word_embeddings": False}],
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
    "mixtral": [
        {**EXPERTS, "num_local_experts": 5},
        {**EXPERTS, "num_local_experts": 3, "sliding_window": 7, "tie_word_embeddings": True},
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
    "gemma4_text": [
        GEMMA4,
        GEMMA4_EQUAL,
        {**GEMMA4_EQUAL, "attention_bias": True, "num_global_key_value_heads": None},
        {**GEMMA4_SMALL, "attention_k_eq_v": True, "num_global_key_value_heads": 2},
        GEMMA4_SMALL,
        {
            **GEMMA4,
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 7,
        },
        {
            **GEMMA4,
            "num_hidden_layers": 6,
            "per_layer_config": {5: {"head_dim": 10, "num_key_value_heads": 2}},
            "tie_word_embeddings": False,
        },
    ],
    "gemma4_unified_text": [
        {**GEMMA4_EQUAL, "num_global_key_value_heads": 1},
    ],
    "gemma3": [{"text_config": GEMMA3}],
    "gemma4": [{"text_config": GEMMA4_EQUAL}],
    "gemma4_unified": [{"text_config": GEMMA4_EQUAL}],
    "deepseek_v2": [
        {**LATENT, "topk_method": "group_limited_greedy"},
        {
            **LATENT,
            "q_lora_rank": None,
            "attention_bias": True,
            "mlp_bias": True,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
        },
    ],
    "deepseek_v3": [LATENT, {**LATENT, "first_k_dense_replace": 3, "attention_bias": True}],
    "deepseek_v4": [
        COMPRESSED,
        {**COMPRESSED, "mlp_bias": True, "tie_word_embeddings": True},
    ],
    "t5": [T5, {**T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": None}],
    "whisper": [WHISPER, {**WHISPER, "decoder_attention_heads": 2}],
}
"""Configurations by family."""

HOLDS_MORE: dict[str, str] = {
    "falcon": "the new decoder repeats keys and values for every query head before it stores them",
    "deepseek_v4": "stores the shared tensor of layers without summaries as keys and as values",
}
"""Families where a cache holds entries that theory does not ask for; the test has the bytes."""
