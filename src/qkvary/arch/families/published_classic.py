"""Published GPT-2, Pythia, OPT, Bloom, Falcon and Phi models."""

from qkvary.arch.families.published_config import (
    HUB,
    LITGPT,
    NANOGPT,
    PublishedConfig,
    take_defaults,
)


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
        take_defaults("GPT2Config", fields)
        if layers == 12
        else PublishedConfig(fields=fields, source=NANOGPT)
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
    return PublishedConfig(fields=fields, source=LITGPT)


CLASSIC_CONFIGS: dict[str, PublishedConfig] = {
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
    "opt-125m": take_defaults(
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
        source=f"{HUB}/sartajbhuvaji/facebook-opt-350m-chat/blob/main/config.json",
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
        source=f"{HUB}/mrm8488/bloom-560m-finetuned-common_gen/blob/main/config.json",
    ),
    "falcon-7b": take_defaults(
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
        source=f"{HUB}/tiiuae/falcon-40b/blob/refs%2Fpr%2F111/config.json",
    ),
    "phi-1": take_defaults(
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
        source=f"{HUB}/unrahul/phi-2-OpenVINO-asym-int8/blob/main/config.json",
    ),
}
"""By name."""
