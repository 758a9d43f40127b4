"""Published Gemma, DeepSeek, T5 and Whisper models."""

from qkvary.arch.families.published_config import HUB, MAXTEXT, PublishedConfig, take_defaults

_MAXTEXT_MODELS = "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/maxtext/configs/models"
_GEMMA_3 = {"model_type": "gemma3_text", "head_dim": 256, "sliding_window_pattern": 6}


def _gemma(layers: int, width: int, inner: int, heads: tuple[int, int]) -> PublishedConfig:
    fields = {
        "model_type": "gemma",
        "vocab_size": 256000,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 256,
        "max_position_embeddings": 8192,
    }
    # The larger is the default of the configuration class.
    source = f"{HUB}/yaswanthchittepu/gemma1-sft-159744/blob/main/config.json"
    return (
        take_defaults("GemmaConfig", fields)
        if layers == 28
        else PublishedConfig(fields=fields, source=source)
    )


def _gemma_2(
    layers: int, width: int, inner: int, heads: tuple[int, int], dim: int
) -> PublishedConfig:
    fields = {
        "model_type": "gemma2",
        "vocab_size": 256000,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": dim,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
    }
    # The smallest is the default of the configuration class.
    return (
        take_defaults("Gemma2Config", fields)
        if layers == 26
        else PublishedConfig(fields=fields, source=MAXTEXT)
    )


def _gemma_4(
    layers: int,
    width: int,
    inner: int,
    heads: tuple[int, int],
    *,
    period: int = 6,
    **others: object,
) -> PublishedConfig:
    kinds = [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)
    ]
    text = {
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 256,
        "global_head_dim": 512,
        "layer_types": kinds,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
        **others,
    }
    fields = {"model_type": "gemma4", "text_config": text, "tie_word_embeddings": True}
    return PublishedConfig(fields=fields, source=MAXTEXT)


def _t5(
    source: str, layers: int, width: int, inner: int, heads: int, **others: object
) -> PublishedConfig:
    """Return the later T5, gated and with a head of its own."""
    fields = {
        "model_type": "t5",
        "vocab_size": 32128,
        "d_model": width,
        "d_kv": 64,
        "d_ff": inner,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": 32,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        **others,
    }
    return PublishedConfig(fields=fields, source=f"{HUB}/{source}")


def _whisper_large(source: str, decoder_layers: int) -> PublishedConfig:
    fields = {
        "model_type": "whisper",
        "vocab_size": 51866,
        "d_model": 1280,
        "encoder_layers": 32,
        "decoder_layers": decoder_layers,
        "encoder_attention_heads": 20,
        "decoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "decoder_ffn_dim": 5120,
        "num_mel_bins": 128,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }
    return PublishedConfig(fields=fields, source=f"{HUB}/{source}")


_GEMMA_4_LARGE = {
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "num_kv_shared_layers": 0,
    "sliding_window": 1024,
}
_GEMMA_4_SMALL = {
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
}

MIXED_CONFIGS: dict[str, PublishedConfig] = {
    "gemma-2b": _gemma(18, 2048, 16384, (8, 1)),
    "gemma-7b": _gemma(28, 3072, 24576, (16, 16)),
    "gemma-2-2b": _gemma_2(26, 2304, 9216, (8, 4), 256),
    "gemma-2-9b": _gemma_2(42, 3584, 14336, (16, 8), 256),
    "gemma-2-27b": _gemma_2(46, 4608, 36864, (32, 16), 128),
    "gemma-3-1b": PublishedConfig(
        fields={
            **_GEMMA_3,
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
        },
        source=f"{HUB}/mlx-community/gemma-3-1b-pt-6bit/blame/main/config.json",
    ),
    "gemma-3-4b": PublishedConfig(
        fields={
            **_GEMMA_3,
            "vocab_size": 262208,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
            "sliding_window": 1024,
        },
        source=f"{HUB}/Creekside/gemma-3/blame/main/config.json",
    ),
    "gemma-4-31b": _gemma_4(
        60, 5376, 21504, (32, 16), **_GEMMA_4_LARGE, num_global_key_value_heads=4
    ),
    "gemma-4-12b": PublishedConfig(
        fields={
            "model_type": "gemma4_unified_text",
            "vocab_size": 262144,
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "num_global_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "attention_k_eq_v": True,
            "sliding_window": 1024,
            "tie_word_embeddings": True,
        },
        source=f"{_MAXTEXT_MODELS}/gemma4-12b.yml",
    ),
    "gemma-4-26b-a4b": _gemma_4(
        30,
        2816,
        2112,
        (16, 8),
        **_GEMMA_4_LARGE,
        num_global_key_value_heads=2,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "gemma-4-e2b": _gemma_4(
        35,
        1536,
        6144,
        (8, 1),
        period=5,
        **_GEMMA_4_SMALL,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
    ),
    "gemma-4-e4b": _gemma_4(
        42,
        2560,
        10240,
        (8, 2),
        **_GEMMA_4_SMALL,
        num_kv_shared_layers=18,
        use_double_wide_mlp=False,
    ),
    "deepseek-v2-lite": PublishedConfig(
        fields={
            "model_type": "deepseek_v2",
            "vocab_size": 102400,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "moe_layer_freq": 1,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "max_position_embeddings": 163840,
            "tie_word_embeddings": False,
        },
        source=MAXTEXT,
    ),
    "deepseek-v3": PublishedConfig(
        fields={
            "model_type": "deepseek_v3",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "first_k_dense_replace": 3,
            "moe_layer_freq": 1,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "num_nextn_predict_layers": 1,
            "max_position_embeddings": 163840,
            "tie_word_embeddings": False,
        },
        source=MAXTEXT,
    ),
    "deepseek-v4-flash": PublishedConfig(
        fields={
            "model_type": "deepseek_v4",
            "vocab_size": 129280,
            "hidden_size": 4096,
            "num_hidden_layers": 43,
            "num_attention_heads": 64,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 1024,
            "qk_rope_head_dim": 64,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "sliding_window": 128,
            "compress_ratios": [0, 0, *([4, 128] * 20), 4],
            "index_head_dim": 128,
            "index_n_heads": 64,
            "index_topk": 512,
            "hc_mult": 4,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "num_hash_layers": 3,
            "num_nextn_predict_layers": 1,
            "max_position_embeddings": 1048576,
            "tie_word_embeddings": False,
        },
        source=MAXTEXT,
    ),
    "deepseek-v4-pro": PublishedConfig(
        fields={
            "model_type": "deepseek_v4",
            "vocab_size": 129280,
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 1,
            "head_dim": 512,
            "q_lora_rank": 1536,
            "qk_rope_head_dim": 64,
            "o_groups": 16,
            "o_lora_rank": 1024,
            "sliding_window": 128,
            "compress_ratios": [128, *([128, 4] * 30), 0],
            "index_head_dim": 128,
            "index_n_heads": 64,
            "index_topk": 1024,
            "hc_mult": 4,
            "moe_intermediate_size": 3072,
            "n_routed_experts": 384,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "num_hash_layers": 3,
            "max_position_embeddings": 1048576,
            "tie_word_embeddings": False,
        },
        source=f"{_MAXTEXT_MODELS}/deepseek4-1600b.yml",
    ),
    "t5-small": take_defaults(
        "T5Config",
        {
            "model_type": "t5",
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_decoder_layers": 6,
            "num_heads": 8,
            "relative_attention_num_buckets": 32,
            "feed_forward_proj": "relu",
            "tie_word_embeddings": True,
        },
    ),
    "t5-v1.1-large": _t5("google/t5-v1_1-large/blame/main/config.json", 24, 1024, 2816, 16),
    "flan-t5-xxl": _t5("google/flan-t5-xxl/blob/refs%2Fpr%2F69/config.json", 24, 4096, 10240, 64),
    "whisper-tiny": take_defaults(
        "WhisperConfig",
        {
            "model_type": "whisper",
            "vocab_size": 51865,
            "d_model": 384,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 1536,
            "decoder_ffn_dim": 1536,
            "num_mel_bins": 80,
            "max_source_positions": 1500,
            "max_target_positions": 448,
        },
    ),
    "whisper-large-v3": _whisper_large(
        "fsicoli/whisper-large-v3-pt-cv16-cuda/blame/785607c1e313039d02724f5c559f3d696ec96ab7/"
        "checkpoint-4000/config.json",
        32,
    ),
    "whisper-large-v3-turbo": _whisper_large(
        "avemio/German-RAG-WHISPER-LARGE-v3-TURBO-HESSIAN-AI/blob/"
        "9c97ccc2aaac87dea1074135af032d363ea2c466/config.json",
        4,
    ),
}
"""By name."""
