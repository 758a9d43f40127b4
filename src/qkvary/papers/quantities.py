"""The cost model's quantities for the papers' networks."""

import functools
from typing import Literal

from qkvary.arch.models import as_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.published_networks import gpt_300m, gpt_1200m
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.macs import MacCount, Pairs, forward_macs
from qkvary.costs.parameters import ParameterCount, model_parameters

Size = Literal["300M", "1.2B"]

TOKENS_32K = 32_768
ROUND_32K = 32_000
""""32k" with decimal thousands."""
TOKENS_128K = 131_072
ROUND_128K = 128_000
GB = 10**9
MB = 10**6
MIB = 2**20
KIB = 2**10

CACHE_FORMULA = "layers x KV heads x head size x stored tensors x 2 bytes"
ROUND_TOKENS = "32,000 tokens (the same as a KB of 1,024 bytes read as 1,000 at 32,768 tokens)"


def network(label: str, size: Size = "300M") -> LanguageModelConfig:
    """Return one of the two networks of "Do Transformers Need Three Projections?"."""
    return gpt_300m(label) if size == "300M" else gpt_1200m(label)


@functools.cache
def parameters(label: str, size: Size = "300M") -> ParameterCount:
    """Return the parameters of a network by part."""
    return model_parameters(as_model(network(label, size)))


@functools.cache
def macs(label: str, tokens: int, pairs: Pairs = "square") -> MacCount:
    """Return the MACs of the smaller network for one sequence."""
    return forward_macs(as_model(network(label)), tokens=tokens, pairs=pairs)


@functools.cache
def cache_bytes(label: str, size: Size = "300M", *, tokens: int = 1) -> int:
    """Return the bytes of a 16-bit cache."""
    return model_cache_bytes(as_model(network(label, size)), context=tokens, stored_as="bf16")


def cache_reduction(label: str, size: Size = "300M") -> float:
    """Return the reduction of the cache relative to QKV, in percent."""
    return 100 * (1 - cache_bytes(label, size) / cache_bytes("QKV", size))


def change(before: float, after: float) -> float:
    """Return a change in percent."""
    return 100 * (after / before - 1)
