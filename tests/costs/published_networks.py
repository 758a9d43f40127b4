"""The papers' networks, whose costs are printed in their tables."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig


def synthetic_encoder(label: str) -> EncoderConfig:
    """The synthetic experiments at d 64, 2 layers, 2 heads."""
    return EncoderConfig(
        attention=AttentionConfig(d_model=64, num_heads=2, variant=parse_variant(label)),
        block=BlockConfig(d_ff=128, activation="relu", norm_placement="post"),
        num_layers=2,
        vocabulary=10,
        max_tokens=64,
        classes=10,
    )


def gpt_300m(label: str) -> LanguageModelConfig:
    """Paper 1's language model of 300M parameters."""
    return _gpt(label, d_model=1024, num_heads=16, num_layers=20)


def gpt_1200m(label: str) -> LanguageModelConfig:
    """Paper 1's language model of 1.2B parameters."""
    return _gpt(label, d_model=2048, num_heads=32, num_layers=22)


def _gpt(label: str, *, d_model: int, num_heads: int, num_layers: int) -> LanguageModelConfig:
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=d_model, num_heads=num_heads, causal=True, variant=parse_variant(label)
        ),
        block=BlockConfig(d_ff=4 * d_model),
        num_layers=num_layers,
        vocabulary=50_304,
        max_tokens=2048,
    )
