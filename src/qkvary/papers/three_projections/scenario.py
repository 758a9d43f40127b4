"""The deployment scenario of "Do Transformers Need Three Projections?", section 3.3.3.

The scenario has 100 users with 32k tokens each, served on A100 GPUs of 40 GB at $2,000 a month. The
paper takes 32k as 32,000 tokens and 1 GB as 10^9 bytes, and does not count the weights. Two other
conventions are compared with this one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkvary.arch.models import as_model
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.devices import find_device
from qkvary.costs.formats import parse_format
from qkvary.papers import quantities as costs
from qkvary.papers.derivation import Alternative, Derivation, Derive, Registry, variant_of
from qkvary.papers.three_projections.recomputations import derive_cache_gb
from qkvary.planning import quality
from qkvary.studies.published_tables import PublishedFigure

USERS = 100
PRICE = 2_000
"""Dollars per GPU and month: the paper's $14k for 7 GPUs."""
GPU = "a100-40gb"
SHARED = "Q-K=V"
"""The variant that the paper recommends; it is compared with QKV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """A convention for counting memory."""

    tokens: int
    """The number of tokens that "32k" means."""
    memory_bytes: int
    """The number of bytes that "40 GB" means."""
    weights: bool
    """Whether each GPU's memory must also hold the weights."""
    words: str
    """A description for readers."""


def _gpu_bytes() -> int:
    return find_device(GPU).memory_bytes


PAPER = Convention(
    tokens=costs.ROUND_32K,
    memory_bytes=_gpu_bytes(),
    weights=False,
    words="32,000 tokens, 40 x 10^9 bytes, weights not counted",
)
DECIMAL = Convention(
    tokens=costs.TOKENS_32K,
    memory_bytes=_gpu_bytes(),
    weights=True,
    words="32,768 tokens, 40 x 10^9 bytes and 16-bit weights",
)
BINARY = Convention(
    tokens=costs.TOKENS_32K,
    memory_bytes=40 * 2**30,
    weights=True,
    words="32,768 tokens, 40 x 2^30 bytes and 16-bit weights",
)
OTHERS = (DECIMAL, BINARY)
"""The conventions that are compared with the paper's convention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """The number of GPUs that a variant needs, for one convention of counting memory."""

    users_per_gpu: int
    """Whole users per GPU."""
    gpus: int
    """GPUs for all users."""

    @property
    def dollars_per_month(self) -> int:
        """The price of all GPUs that the variant needs, in dollars per month."""
        return self.gpus * PRICE


def count_gpus(label: str, convention: Convention) -> GpuCount:
    """Count the GPUs that a variant needs.

    The cache of a user is never split across GPUs. If the convention counts weights, each GPU also
    holds the weights.
    """
    free = convention.memory_bytes
    if convention.weights:
        free -= weight_bytes(as_model(quality.network(label)), parse_format("bf16"))
    users = free // quality.cache_bytes(label, tokens=convention.tokens)
    return GpuCount(users_per_gpu=users, gpus=math.ceil(USERS / users))


def saved_per_month(convention: Convention) -> int:
    """Return the dollars per month that Q-K=V saves, compared with QKV."""
    return (
        count_gpus("QKV", convention).dollars_per_month
        - count_gpus(SHARED, convention).dollars_per_month
    )


def saved_percent(convention: Convention) -> float:
    """Return the share of the price of QKV that Q-K=V saves, in percent."""
    return 100 * saved_per_month(convention) / count_gpus("QKV", convention).dollars_per_month


def _per_variant(quantity: Callable[[GpuCount], float], formula: str) -> Derive:
    def derive(figure: PublishedFigure) -> Derivation:
        label = variant_of(figure)
        return _derive(lambda convention: quantity(count_gpus(label, convention)), formula)

    return derive


def _derive(quantity: Callable[[Convention], float], formula: str) -> Derivation:
    return Derivation(
        value=quantity(PAPER),
        formula=formula,
        convention=PAPER.words,
        others=tuple(
            Alternative(value=quantity(convention), convention=convention.words)
            for convention in OTHERS
        ),
    )


_COLUMNS: dict[str, Derive] = {
    "cache": lambda figure: derive_cache_gb(variant_of(figure), "300M", costs.TOKENS_32K),
    "users": _per_variant(
        lambda served: served.users_per_gpu, "GPU memory divided by one user's cache, rounded down"
    ),
    "gpus": _per_variant(
        lambda served: served.gpus, "100 users divided by users per GPU, rounded up"
    ),
    "month": _per_variant(lambda served: served.dollars_per_month, "GPUs x $2,000"),
}
_SAVED: dict[str, Derive] = {
    "month": lambda _: _derive(saved_per_month, "cost of QKV - cost of Q-K=V"),
    "year": lambda _: _derive(
        lambda convention: 12 * saved_per_month(convention), "12 x dollars saved per month"
    ),
    "share": lambda _: _derive(saved_percent, "(cost of QKV - cost of Q-K=V) / cost of QKV"),
}


def _figure(figure: PublishedFigure) -> Derivation | None:
    column = (_SAVED if figure.row == "saved" else _COLUMNS).get(figure.column)
    return column(figure) if column else None


TABLES: Registry = {"three-projections-scenario": _figure}
