"""The configurations of well-known models, each with the public place where its fields stand.

Only the fields that sizes follow from. A copy of a configuration file is a source where it names
the model that it was copied from.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedConfig:
    """What is known of a model's configuration, and from where."""

    fields: Fields
    """As in its ``config.json``."""
    source: str
    """An address, or the class of transformers whose defaults they are."""


_HUB = "https://huggingface.co"
_LITGPT = "https://github.com/Lightning-AI/litgpt/blob/main/litgpt/config.py"
_MAXTEXT = (
    "https://github.com/AI-Hypercomputer/maxtext/blob/main/src/maxtext/checkpoint_conversion/utils/"
    "hf_model_configs.py"
)
_NANOGPT = "https://github.com/karpathy/nanoGPT/blob/master/model.py"


def _defaults(of: str, fields: Fields) -> PublishedConfig:
    return PublishedConfig(fields=fields, source=f"defaults of {of} in transformers 5.23.0")


def _gpt2(layers: int, width: int, heads: int) -> PublishedConfig:
    fields = {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "tie_word_embeddings": True,
    }
    # The smallest is the default of the configuration class.
    return (
        _defaults("GPT2Config", fields)
        if layers == 12
        else PublishedConfig(fields=fields, source=_NANOGPT)
    )


def _pythia(layers: int, width: int, heads: int, vocabulary: int = 50304) -> PublishedConfig:
    fields = {
        "model_type": "gpt_neox",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2048,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
    }
    return PublishedConfig(fields=fields, source=_LITGPT)


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
        _LITGPT, layers, width, inner, heads, vocab_size=32000, max_position_embeddings=4096
    )


def _llama_3(
    layers: int, width: int, inner: int, heads: tuple[int, int], **others: object
) -> PublishedConfig:
    source = str(others.pop("source", _MAXTEXT))
    shared = {"vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0}
    return _llama(source, layers, width, inner, heads, **{**shared, **others})


def _qwen2(
    layers: int, width: int, inner: int, heads: tuple[int, int], **others: object
) -> PublishedConfig:
    source = str(others.pop("source", f"{_LITGPT} and {_MAXTEXT}"))
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
    return PublishedConfig(fields=fields, source=_MAXTEXT)


def _mistral(**fields: object) -> Fields:
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


PUBLISHED_CONFIGS: dict[str, PublishedConfig] = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    "pythia-12b": _pythia(36, 5120, 40, 50688),
    "opt-125m": _defaults(
        "OPTConfig",
        {
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "ffn_dim": 3072,
            "max_position_embeddings": 2048,
            "num_attention_heads": 12,
        },
    ),
    "opt-350m": PublishedConfig(
        fields={
            "model_type": "opt",
            "vocab_size": 50272,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "max_position_embeddings": 2048,
            "num_attention_heads": 16,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 512,
        },
        source=f"{_HUB}/sartajbhuvaji/facebook-opt-350m-chat/blob/main/config.json",
    ),
    "bloom-560m": PublishedConfig(
        fields={
            "model_type": "bloom",
            "vocab_size": 250880,
            "hidden_size": 1024,
            "n_layer": 24,
            "n_head": 16,
            "seq_length": 2048,
        },
        source=f"{_HUB}/mrm8488/bloom-560m-finetuned-common_gen/blob/main/config.json",
    ),
    "falcon-7b": _defaults(
        "FalconConfig",
        {
            "model_type": "falcon",
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
            "new_decoder_architecture": False,
            "parallel_attn": True,
            "bias": False,
            "max_position_embeddings": 2048,
        },
    ),
    "falcon-40b": PublishedConfig(
        fields={
            "model_type": "falcon",
            "vocab_size": 65024,
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "new_decoder_architecture": True,
            "parallel_attn": True,
            "bias": False,
        },
        source=f"{_HUB}/tiiuae/falcon-40b/blob/refs%2Fpr%2F111/config.json",
    ),
    "phi-1": _defaults(
        "PhiConfig",
        {
            "model_type": "phi",
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
    ),
    "phi-2": PublishedConfig(
        fields={
            "model_type": "phi",
            "vocab_size": 51200,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "max_position_embeddings": 2048,
            "partial_rotary_factor": 0.4,
            "qk_layernorm": False,
            "tie_word_embeddings": False,
        },
        source=f"{_HUB}/unrahul/phi-2-OpenVINO-asym-int8/blob/main/config.json",
    ),
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
        source=f"{_HUB}/Alignment-Lab-AI/idfkphi4kiguess/blob/main/config.json",
    ),
    "llama-7b": _defaults(
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
        source=f"{_HUB}/h3110Fr13nd/llama-3.2-1b-onnx/blob/main/config.json",
    ),
    "mistral-7b": PublishedConfig(
        fields=_mistral(model_type="mistral", sliding_window=4096),
        source=f"{_HUB}/dmayboroda/42_mistral_0.1/blob/main/config.json",
    ),
    "mixtral-8x7b": PublishedConfig(
        fields=_mistral(
            model_type="mixtral",
            num_local_experts=8,
            num_experts_per_tok=2,
            sliding_window=None,
            rope_theta=1000000.0,
        ),
        source=_MAXTEXT,
    ),
    "qwen2.5-0.5b": _qwen2(
        24,
        896,
        4864,
        (14, 2),
        vocab_size=151936,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        source=f"{_HUB}/osllmai-community/Qwen2.5-0.5B/blob/main/config.json",
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
"""The published models that have a name here."""
