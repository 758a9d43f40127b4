"""Published Llama, Mistral, Qwen and Phi 3 models."""

from collections.abc import Mapping

from qkvary.arch.families.published_config import (
    HUB,
    LITGPT,
    MAXTEXT,
    PublishedConfig,
    take_defaults,
)


def _llama(
    source: str, layers: int, width: int, inner: int, heads: tuple[int, int], **others: object
) -> PublishedConfig:
    fields = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "tie_word_embeddings": False,
        **others,
    }
    return PublishedConfig(fields=fields, source=source)


def _llama_2(layers: int, width: int, inner: int, heads: tuple[int, int]) -> PublishedConfig:
    return _llama(
        LITGPT, layers, width, inner, heads, vocab_size=32000, max_position_embeddings=4096
    )


def _llama_3(
    layers: int, width: int, inner: int, heads: tuple[int, int], **others: object
) -> PublishedConfig:
    source = str(others.pop("source", MAXTEXT))
    shared = {"vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0}
    return _llama(source, layers, width, inner, heads, **{**shared, **others})


def _qwen2(
    layers: int, width: int, inner: int, heads: tuple[int, int], **others: object
) -> PublishedConfig:
    source = str(others.pop("source", f"{LITGPT} and {MAXTEXT}"))
    fields = {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "max_position_embeddings": 131072,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        **others,
    }
    return PublishedConfig(fields=fields, source=source)


def _qwen3(
    layers: int, width: int, inner: int, heads: tuple[int, int], **others: object
) -> PublishedConfig:
    fields = {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        **others,
    }
    return PublishedConfig(fields=fields, source=MAXTEXT)


def _mistral(**fields: object) -> Mapping[str, object]:
    shared = {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
    }
    return {**shared, **fields}


LLAMA_CONFIGS: dict[str, PublishedConfig] = {
    "phi-3-mini-4k": PublishedConfig(
        fields={
            "model_type": "phi3",
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "sliding_window": 2047,
            "tie_word_embeddings": False,
        },
        source=f"{HUB}/Alignment-Lab-AI/idfkphi4kiguess/blob/main/config.json",
    ),
    "llama-7b": take_defaults(
        "LlamaConfig",
        {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
    "llama-2-7b": _llama_2(32, 4096, 11008, (32, 32)),
    "llama-2-13b": _llama_2(40, 5120, 13824, (40, 40)),
    "llama-2-70b": _llama_2(80, 8192, 28672, (64, 8)),
    "llama-3.1-8b": _llama_3(32, 4096, 14336, (32, 8)),
    "llama-3.1-70b": _llama_3(80, 8192, 28672, (64, 8)),
    "llama-3.1-405b": _llama_3(126, 16384, 53248, (128, 8)),
    "llama-3.2-1b": _llama_3(
        16,
        2048,
        8192,
        (32, 8),
        head_dim=64,
        tie_word_embeddings=True,
        source=f"{HUB}/h3110Fr13nd/llama-3.2-1b-onnx/blob/main/config.json",
    ),
    "mistral-7b": PublishedConfig(
        fields=_mistral(model_type="mistral", sliding_window=4096),
        source=f"{HUB}/dmayboroda/42_mistral_0.1/blob/main/config.json",
    ),
    "mixtral-8x7b": PublishedConfig(
        fields=_mistral(
            model_type="mixtral",
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_theta=1000000.0,
        ),
        source=MAXTEXT,
    ),
    "qwen2.5-0.5b": _qwen2(
        24,
        896,
        4864,
        (14, 2),
        vocab_size=151936,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        source=f"{HUB}/osllmai-community/Qwen2.5-0.5B/blob/main/config.json",
    ),
    "qwen2.5-1.5b": _qwen2(28, 1536, 8960, (12, 2), vocab_size=151936, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen2(28, 3584, 18944, (28, 4)),
    "qwen2.5-14b": _qwen2(48, 5120, 13824, (40, 8)),
    "qwen3-0.6b": _qwen3(28, 1024, 3072, (16, 8), tie_word_embeddings=True),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, (16, 8), tie_word_embeddings=True),
    "qwen3-4b": _qwen3(36, 2560, 9728, (32, 8), tie_word_embeddings=True),
    "qwen3-8b": _qwen3(36, 4096, 12288, (32, 8)),
    "qwen3-14b": _qwen3(40, 5120, 17408, (40, 8)),
    "qwen3-32b": _qwen3(64, 5120, 25600, (64, 8)),
    "qwen3-30b-a3b": _qwen3(
        48,
        2048,
        6144,
        (32, 4),
        model_type="qwen3_moe",
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
        max_position_embeddings=32768,
    ),
}
"""By name."""
