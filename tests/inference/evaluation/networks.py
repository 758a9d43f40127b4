"""Byte-level networks, small enough for tests that ask many questions."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.nn.language_model import LanguageModel


def byte_network(label: str, *, max_tokens: int) -> LanguageModel:
    """Two layers, 256 tokens, no positions of its own."""
    config = LanguageModelConfig(
        attention=AttentionConfig(
            d_model=24, num_heads=3, variant=parse_variant(label), causal=True
        ),
        block=BlockConfig(d_ff=29),
        num_layers=2,
        vocabulary=256,
        max_tokens=max_tokens,
        positions="none",
    )
    return LanguageModel(config, seed=4)
