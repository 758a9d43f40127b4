"""Parameters, MACs and cache sizes of the papers' networks, from the cost model."""

import functools

from qkvary.arch.models import as_model
from qkvary.arch.published_quality import Size
from qkvary.costs.macs import MacCount, Pairs, forward_macs
from qkvary.costs.parameters import ParameterCount, model_parameters
from qkvary.planning.quality import cache_bytes, network

TOKENS_32K = 32_768
ROUND_32K = 32_000
""""32k" read as a decimal number."""
TOKENS_128K = 131_072
ROUND_128K = 128_000
GB = 10**9
MB = 10**6
MIB = 2**20
KIB = 2**10

CACHE_FORMULA = "layers x KV heads x head size x stored tensors x 2 bytes"
ROUND_TOKENS = (
    "32,000 tokens (32,768 tokens give the same number if every 1,024 bytes are counted as 1,000)"
)


@functools.cache
def parameters(label: str, size: Size = "300M") -> ParameterCount:
    """Return the parameters of a network by part."""
    return model_parameters(as_model(network(label, size)))


@functools.cache
def macs(label: str, tokens: int, pairs: Pairs = "square") -> MacCount:
    """Return the MACs of the 300M network for one sequence."""
    return forward_macs(as_model(network(label)), tokens=tokens, pairs=pairs)


def cache_reduction(label: str, size: Size = "300M") -> float:
    """Return the reduction of the cache relative to QKV, in percent."""
    return 100 * (1 - cache_bytes(label, size) / cache_bytes("QKV", size))
