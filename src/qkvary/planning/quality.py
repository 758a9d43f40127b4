"""The cost of sharing in quality by the papers' figures, with their limitations.

Only language models: the perplexities of "Do Transformers Need Three Projections?", Tables 4 and
10. Changes are recomputed from the printed perplexities, with intervals for their rounding. Never
imports torch.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from qkvary.arch.labels import canonical_label
from qkvary.costs.pareto import dominates
from qkvary.literature.figures import BASELINE, PublishedFigure, load_published
from qkvary.literature.recomputations.quantities import Size, cache_bytes, network
from qkvary.literature.recomputations.three_projections import LARGE, SMALL, derive_change
from qkvary.literature.rounding import printed_interval

Status = Literal["frontier", "dominated beyond rounding", "dominated by the printed figures only"]

SEEDS = 1
"""Trained networks per variant and size."""
REAL_FRACTION_BOUND = 0.53
"""An estimated upper bound of the share of real tokens: documents of 1.09k tokens on average,
padded or truncated to 2,048. The average is from the data card of a 6B-token sample of the corpus.
"""
REAL_FRACTIONS = (1.0, REAL_FRACTION_BOUND, 0.45, 0.40)
"""Shares of real tokens for which changes are given; 1 is as published."""

_PERPLEXITIES: Mapping[Size, tuple[str, str]] = {
    "300M": (SMALL, "validation_perplexity"),
    "1.2B": (LARGE, "perplexity"),
}

_ONE_SEED = "One network was trained per variant: how much of a difference is chance is unknown."
_DILUTED = (
    "Documents were padded to 2,048 tokens and the padding counts in the loss, so the change per "
    "real token is larger: about twice as large if half of the tokens are real (an estimate)."
)
_SHIPPED_GROUPS = (
    "The released script for Q-GQA has 8 KV heads (75 % less cache), where the table says 4."
)
_STOPPED_EARLY = (
    "Reported at step 7,500 of 8,477, after 8.85B positions; learning rate, warm-up and batch "
    "differ from the 300M networks."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The published change of a variant's validation perplexity against QKV."""

    variant: str
    """The canonical label."""
    size: Size
    """The size of the compared networks."""
    change_percent: float
    """The change, recomputed from the two printed perplexities."""
    low: float
    """The smallest change consistent with the printed perplexities, in percent."""
    high: float
    """The largest."""
    printed: str
    """The printed change, which does not always follow from the perplexities."""
    perplexity: float
    """The printed perplexity, over padded positions instead of real tokens."""
    seeds: int
    """The number of trained networks behind the figure."""
    source: str
    """The paper and its table."""
    caveats: tuple[str, ...]
    """Limitations of the figure, in sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPosition:
    """The position of a variant relative to the frontier of its size, by cache."""

    variant: str
    """The canonical label."""
    cost: int
    """Bytes of bf16 cache per token."""
    perplexity: float
    """The printed perplexity."""
    dominated_by: tuple[str, ...]
    """The variants that are no worse in cache and perplexity and better in one, best perplexity
    first."""
    status: Status
    """Whether the variant is dominated, and how surely."""


def quality_of(label: str, size: Size = "300M") -> Quality | None:
    """Return the published change of a variant, or None if there is none at this size.

    Args:
        label: The variant, in any spelling. GQA counts KV heads, so GQA-4 exists at 300M (of 16
            heads) and GQA-8 at 1.2B (of 32).
        size: The size of the networks.

    Raises:
        ValueError: for an unknown label or size.
    """
    variant = canonical_label(label)
    found = _perplexities(size)
    if variant not in found:
        return None
    name, column = _PERPLEXITIES[size]
    table, change = load_published(name), derive_change(variant, name, column)
    low, high = change.spread or (math.nan, math.nan)
    printed, caveats = "-", list[str]()
    if variant != BASELINE:
        printed = f"{table.figure(variant, 'change').printed.removesuffix('%')} %"
        caveats = _caveats(variant, size)
    return Quality(
        variant=variant,
        size=size,
        change_percent=float(change.value),
        low=low,
        high=high,
        printed=printed,
        perplexity=found[variant].value or math.nan,
        seeds=SEEDS,
        source=table.source,
        caveats=tuple(caveats),
    )


def qualities(size: Size = "300M") -> tuple[Quality, ...]:
    """Return the published change of every variant that was trained at a size, QKV first."""
    found = (quality_of(label, size) for label in _perplexities(size))
    return tuple(quality for quality in found if quality is not None)


def change_per_real_token(change_percent: float, real_fraction: float) -> float:
    """Convert a change of perplexity, in percent, to one per real token.

    A mean loss L over positions of which a share f is real, with free padding, is L/f per real
    token, so perplexities are raised to the power 1/f.

    Args:
        change_percent: The change of the published perplexity.
        real_fraction: f.

    Raises:
        ValueError: for a share outside (0, 1], or a change that leaves no perplexity.
    """
    if not 0 < real_fraction <= 1:
        raise ValueError(f"expected a share of real tokens in (0, 1], got {real_fraction}")
    if change_percent <= -100:
        raise ValueError(f"expected a change above -100 %, got {change_percent}")
    return 100 * ((1 + change_percent / 100) ** (1 / real_fraction) - 1)


@functools.cache
def frontier_positions(size: Size = "300M") -> tuple[FrontierPosition, ...]:
    """Return the frontier position, by cache, of every variant that was trained at a size."""
    figures = _perplexities(size)
    costs = {label: cache_bytes(label, size) for label in figures}
    return tuple(_find_position(label, figures, costs) for label in figures)


@functools.cache
def _perplexities(size: Size) -> Mapping[str, PublishedFigure]:
    if size not in _PERPLEXITIES:
        raise ValueError(f"expected a size out of {', '.join(get_args(Size))}, got {size!r}")
    name, column = _PERPLEXITIES[size]
    return {
        figure.variant: figure
        for figure in load_published(name).figures
        if figure.column == column and figure.variant is not None
    }


def _caveats(variant: str, size: Size) -> list[str]:
    found = [_ONE_SEED, _DILUTED]
    if size == "1.2B":
        found.append(_STOPPED_EARLY)
    elif variant == "Q-GQA-4":
        found.append(_SHIPPED_GROUPS)
    layer = network(variant, size).layers[0]
    shared = layer.variant.sharing
    if shared.key == shared.value and shared.query != shared.key:
        half = layer.num_kv_heads / 2
        found.append(
            f"GQA-{half:.0f} has the same cache and was never compared with it."
            if half >= 1
            else "Head sharing alone cannot make so small a cache with heads of this size."
        )
    return found


def _find_position(
    label: str, figures: Mapping[str, PublishedFigure], costs: Mapping[str, int]
) -> FrontierPosition:
    own = figures[label].value or math.nan
    above = [
        figure
        for other, figure in figures.items()
        if dominates((costs[other], figure.value or math.nan), (costs[label], own))
    ]
    own_low, _ = printed_interval(figures[label])
    above.sort(key=lambda figure: figure.value or math.nan)
    status: Status = "frontier"
    if above:
        is_sure = any(printed_interval(figure)[1] < own_low for figure in above)
        status = "dominated beyond rounding" if is_sure else "dominated by the printed figures only"
    return FrontierPosition(
        variant=label,
        cost=costs[label],
        perplexity=own,
        dominated_by=tuple(str(figure.variant) for figure in above),
        status=status,
    )
