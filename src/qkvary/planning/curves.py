"""The curves and points of a plan's charts, as values.

Cache against context, and the papers' quality against cache. Never imports torch.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import get_args

from qkvary.arch.blocks import CompressedAttention, ProjectedAttention
from qkvary.arch.models import Model
from qkvary.arch.published_quality import BASELINE
from qkvary.costs.candidates import Candidate
from qkvary.costs.decoding import weight_bytes
from qkvary.costs.formats import Format
from qkvary.planning.advice import collect_caveats
from qkvary.planning.plans import Plan
from qkvary.planning.quality import Quality, Size, Status, cache_bytes, compare, qualities

SIZES: tuple[Size, ...] = get_args(Size)
"""The papers' network sizes that have charts."""
FEWEST_TOKENS = 16
"""Lower limit for the start of the context axis, in tokens."""
DEFAULT_FIRST = 1024
"""Usual start of the context axis, in tokens. Short windows or contexts lower it."""
MOST_DOUBLINGS = 24
"""Maximum number of times that the context doubles along its axis."""
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart."""

    names: tuple[str, ...]
    """The names of the rows of the plan that share this curve."""
    label: str
    """The variant of the first row. It determines the style of the line."""
    points: tuple[Point, ...]
    """The points (x, y), from left to right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurves:
    """The chart of one user's cache size against the context.

    Each line shows the bytes for each number of tokens. Rows with equal caches share a line.
    """

    curves: tuple[Curve, ...]
    cache: Format
    low: float
    """The first context of the axis, in tokens."""
    high: float
    """The last context of the axis."""
    context: int
    """The requested context: cached tokens per user."""
    device: str
    memory_bytes: int
    free_bytes: int
    """The memory of the device without the reserve and the weights of the given model."""
    left_out: tuple[str, ...]
    """The names of the rows that are not drawn, because they have no cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPoint(Quality):
    """The quality of a variant that the papers trained, and its point in the chart."""

    share: float
    """The cache as a share of QKV's."""
    status: Status
    """The frontier status among the variants of the same size."""
    dominated_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoints:
    """The chart of published changes in perplexity against cache size, for one model size."""

    size: Size
    points: tuple[PublishedPoint, ...]
    """Every trained variant, largest cache first."""
    caveats: tuple[str, ...]
    """The limitations of the published changes; the first names their source."""


def compute_cache_curves(plan: Plan) -> CacheCurves | None:
    """Compute one user's cache size for each context; ``None`` if no row has a cache.

    The size is the peak during decoding, in the first cache format of the plan.
    """
    model, demand, cache = plan.model, plan.demand, plan.formats[0]
    if not model.is_causal:
        return None
    low, high, contexts = _sample_contexts(model, demand.context)
    found: dict[tuple[int, ...], list[Candidate]] = {}
    for row in plan.candidates.rows:
        held = tuple(demand.user_bytes(row.model, cache, context=tokens) for tokens in contexts)
        found.setdefault(held, []).append(row)
    curves = [
        Curve(
            names=tuple(map(name_row, rows)),
            label=rows[0].label,
            points=tuple(zip(map(float, contexts), map(float, held), strict=True)),
        )
        for held, rows in found.items()
        if min(held) > 0
    ]
    if not curves:
        return None
    drawn = [name for curve in curves for name in curve.names]
    return CacheCurves(
        curves=tuple(sorted(curves, key=lambda curve: -curve.points[-1][1])),
        cache=cache,
        low=low,
        high=high,
        context=demand.context,
        device=demand.device.title,
        memory_bytes=demand.device.memory_bytes,
        free_bytes=demand.usable_bytes - weight_bytes(model, demand.weights),
        left_out=tuple(name for name in map(name_row, plan.candidates.rows) if name not in drawn),
    )


def compute_quality_points(size: Size) -> QualityPoints:
    """Compute the cache size and published quality of each variant, for one model size."""
    found = qualities(size)
    ranked = sorted(found, key=lambda quality: quality.change_percent)
    costs = {quality.variant: cache_bytes(quality.variant, size) for quality in found}
    compared = compare({one.variant: (costs[one.variant], one) for one in ranked})
    points: list[PublishedPoint] = []
    for quality in ranked:
        status, dominated_by = compared[quality.variant]
        points.append(
            PublishedPoint(
                **dataclasses.asdict(quality),
                share=costs[quality.variant] / costs[BASELINE],
                status=status,
                dominated_by=dominated_by,
            )
        )
    # Sorting is stable: of equal caches the best comes first.
    points.sort(key=lambda point: -point.share)
    return QualityPoints(size=size, points=tuple(points), caveats=collect_caveats(found))


def name_row(row: Candidate) -> str:
    """Return the name of a row, with a star if it keeps the given model's weights."""
    return row.name + (" *" if row.is_original else "")


def _windows(model: Model) -> set[int]:
    found: set[int] = set()
    for layer in model.layers:
        attention = layer.attention
        if isinstance(attention, CompressedAttention):
            found.add(attention.window)
        elif isinstance(attention, ProjectedAttention):
            variant = attention.config.variant
            found |= {variant.reach} if variant.reach and not variant.keeps_state else set()
    return found


def _sample_contexts(model: Model, context: int) -> tuple[int, int, list[int]]:
    """Return the two ends of the context axis (powers of 2), and the contexts of the curves."""
    windows = _windows(model)
    shortest = min([DEFAULT_FIRST, context // 4, *(window // 2 for window in windows)])
    low = 2 ** math.floor(math.log2(max(shortest, FEWEST_TOKENS)))
    high = 2 ** math.ceil(math.log2(max(2 * context, 2 * (model.max_tokens or 0), 16 * low)))
    low = max(low, high >> MOST_DOUBLINGS)
    first, last = low.bit_length() - 1, high.bit_length() - 1
    # Four contexts per doubling, and every context where a curve may bend.
    regular = {round(2 ** (quarter / 4)) for quarter in range(4 * first, 4 * last + 1)}
    bends = {context, model.max_tokens or context}
    bends |= {window + shift for window in windows for shift in (-1, 0)}
    return low, high, sorted(tokens for tokens in regular | bends if low <= tokens <= high)
