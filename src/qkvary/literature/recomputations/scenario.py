"""The deployment scenario of "Do Transformers Need Three Projections?", section 3.3.3.

100 users with 32k tokens each on A100 GPUs of 40 GB at $2,000 a month. The paper counts caches of
32,000 tokens in 10^9 bytes and no weights; two other readings stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from qkvary.arch.models import as_model
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.devices import find_device
from qkvary.costs.formats import parse_format
from qkvary.literature.figures import PublishedFigure
from qkvary.literature.recomputations import quantities as of
from qkvary.literature.recomputations.derivation import Derivation, Derive, Reading, Registry
from qkvary.literature.recomputations.three_projections import derive_cache_gb, variant_of

USERS = 100
PRICE = 2_000
"""Dollars for a GPU and a month: $14k for 7."""
GPU = "a100-40gb"
SHARED = "Q-K=V"
"""What the paper recommends; the other side is QKV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How memory is counted."""

    tokens: int
    """What "32k" means."""
    memory_bytes: int
    """What "40 GB" means."""
    weights: bool
    """Whether the weights take memory."""
    words: str
    """The same for people."""


def _gpu_bytes() -> int:
    return find_device(GPU).memory_bytes


PAPER = Terms(
    tokens=of.ROUND_32K,
    memory_bytes=_gpu_bytes(),
    weights=False,
    words="32,000 tokens, 40 x 10^9 bytes, no weights",
)
DECIMAL = Terms(
    tokens=of.TOKENS_32K,
    memory_bytes=_gpu_bytes(),
    weights=True,
    words="32,768 tokens, 40 x 10^9 bytes and 16-bit weights",
)
BINARY = Terms(
    tokens=of.TOKENS_32K,
    memory_bytes=40 * 2**30,
    weights=True,
    words="32,768 tokens, 40 x 2^30 bytes and 16-bit weights",
)
OTHERS = (DECIMAL, BINARY)
"""What is shown beside the paper's convention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one variant needs under one set of terms."""

    users_per_gpu: int
    """Whole users that one holds."""
    gpus: int
    """For all users."""

    @property
    def dollars_per_month(self) -> int:
        """For all GPUs."""
        return self.gpus * PRICE


def serve(label: str, terms: Terms) -> Served:
    """Count the GPUs that a variant needs: every GPU holds the model and whole users."""
    free = terms.memory_bytes
    if terms.weights:
        free -= weight_bytes(as_model(of.network(label)), parse_format("bf16"))
    users = free // of.cache_bytes(label, tokens=terms.tokens)
    return Served(users_per_gpu=users, gpus=math.ceil(USERS / users))


def saved_per_month(terms: Terms) -> int:
    """Dollars that sharing saves in a month."""
    return serve("QKV", terms).dollars_per_month - serve(SHARED, terms).dollars_per_month


def saved_percent(terms: Terms) -> float:
    """The share of the cost that sharing saves."""
    return 100 * saved_per_month(terms) / serve("QKV", terms).dollars_per_month


def _per_variant(quantity: Callable[[Served], float], formula: str) -> Derive:
    def derive(figure: PublishedFigure) -> Derivation:
        label = variant_of(figure)
        return _derive(lambda terms: quantity(serve(label, terms)), formula)

    return derive


def _derive(quantity: Callable[[Terms], float], formula: str) -> Derivation:
    return Derivation(
        value=quantity(PAPER),
        formula=formula,
        convention=PAPER.words,
        others=tuple(Reading(value=quantity(terms), convention=terms.words) for terms in OTHERS),
    )


_COLUMNS: dict[str, Derive] = {
    "cache": lambda figure: derive_cache_gb(variant_of(figure), "300M", of.TOKENS_32K),
    "users": _per_variant(lambda served: served.users_per_gpu, "memory / cache of a user, whole"),
    "gpus": _per_variant(lambda served: served.gpus, "100 users / users per GPU, rounded up"),
    "month": _per_variant(lambda served: served.dollars_per_month, "GPUs x $2,000"),
}
_SAVED: dict[str, Derive] = {
    "month": lambda _: _derive(saved_per_month, "cost of QKV - cost of Q-K=V"),
    "year": lambda _: _derive(lambda terms: 12 * saved_per_month(terms), "12 x saved a month"),
    "share": lambda _: _derive(saved_percent, "saved / cost of QKV"),
}


def _figure(figure: PublishedFigure) -> Derivation | None:
    column = (_SAVED if figure.row == "saved" else _COLUMNS).get(figure.column)
    return column(figure) if column else None


TABLES: Registry = {"three-projections-scenario": _figure}
