"""Byte-level networks, small enough for tests that ask many questions."""

from qkvary.nn.language_model import LanguageModel
from tests.small_networks import small_config


def byte_network(label: str, *, max_tokens: int) -> LanguageModel:
    """Two layers, 256 tokens, no positions of its own."""
    sizes = {"d_model": 24, "num_heads": 3, "d_ff": 29, "vocabulary": 256}
    return LanguageModel(small_config(label, max_tokens=max_tokens, **sizes), seed=4)
