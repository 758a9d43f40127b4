"""Bytes that decoding keeps: the distinct sources that key and value read, and nothing else."""

from typing import Literal, get_args

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import NetworkConfig

Dtype = Literal["float64", "float32", "bfloat16", "float16"]

_BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def dtype_bytes(dtype: Dtype) -> int:
    """Bytes of one number.

    Raises:
        ValueError: for an unknown dtype.
    """
    if dtype not in _BYTES:
        raise ValueError(f"expected a dtype out of {', '.join(get_args(Dtype))}, got {dtype!r}")
    return _BYTES[dtype]


def layer_cache_bytes_per_token(config: AttentionConfig, dtype: Dtype) -> int:
    """Bytes that one causal layer keeps of one token."""
    channels = sum(config.width(source) for source in config.variant.cached)
    return channels * dtype_bytes(dtype)


def cache_bytes_per_token(config: NetworkConfig, dtype: Dtype = "float32") -> int | None:
    """Bytes that all layers keep of one token.

    Args:
        config: An encoder or a language model.
        dtype: What the cache stores.

    Returns:
        ``None`` for a network with a bidirectional layer, which cannot decode from a cache.

    Raises:
        ValueError: for an unknown dtype.
    """
    size = sum(layer_cache_bytes_per_token(layer, dtype) for layer in config.layers)
    return size if all(layer.causal for layer in config.layers) else None


def cache_bytes_per_sequence(
    config: NetworkConfig, *, length: int, dtype: Dtype = "float32"
) -> int | None:
    """Bytes that all layers keep of a sequence of ``length`` tokens.

    A window bounds what a layer sees, not what ``KVCache`` keeps.
    """
    per_token = cache_bytes_per_token(config, dtype)
    return None if per_token is None else per_token * length
