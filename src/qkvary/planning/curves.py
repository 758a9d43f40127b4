"""The curves and points of a plan's charts, as values.

Cache against context, users against memory, and the papers' quality against cache. Never imports
torch.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from qkvary.arch.blocks import CompressedAttention, ProjectedAttention
from qkvary.arch.models import Model
from qkvary.arch.published_quality import BASELINE
from qkvary.costs.candidates import Candidate
from qkvary.costs.formats import Format
from qkvary.planning.advice import collect_caveats
from qkvary.planning.plans import Plan
from qkvary.planning.quality import (
    REAL_FRACTIONS,
    Quality,
    Size,
    Status,
    change_per_real_token,
    frontier_positions,
    qualities,
)

SIZES: tuple[Size, ...] = get_args(Size)
"""The papers' network sizes that have charts."""
FEWEST_TOKENS = 16
"""The smallest possible start of the context axis, in tokens."""
DEFAULT_FIRST = 1024
"""The usual start of the context axis, in tokens; a window or a requested context that is shorter
moves it."""
MOST_DOUBLINGS = 24
"""The maximum length of the context axis in doublings."""
SINGLE_STEPS = 40
"""Up to this number of users each step of a curve is drawn; later steps are narrower than a
line."""
MOST_MEMORY = 64
"""The largest end of the memory axis, in multiples of the device's memory."""
REAL_RANGE = (max(REAL_FRACTIONS[1:]), min(REAL_FRACTIONS))
"""The shares of real tokens between which the change without padding is estimated."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a chart."""

    names: tuple[str, ...]
    """The rows of the plan that share this curve, as named in its tables."""
    label: str
    """The variant of the first row, which sets the style of the line."""
    order: int
    """The index of the first row, which sets the dash of the line."""
    points: tuple[Point, ...]
    """The points (x, y), from left to right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curves:
    """Lines of a chart, with their cache and axis."""

    curves: tuple[Curve, ...]
    cache: Format
    low: float
    high: float
    context: int
    """The requested context: cached tokens per user."""
    device: str
    memory_bytes: int
    left_out: tuple[str, ...]
    """Rows without a line: they have no cache, or a single user exceeds the axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCurves(_Curves):
    """The cache of one user against the context.

    A line goes from tokens to bytes; rows with equal caches share one.
    """

    max_tokens: int | None
    free_bytes: int
    """The memory that the reserve and the weights of the given model leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCurves(_Curves):
    """Users of one device against its memory, as step lines."""

    loads: tuple[tuple[int, int], ...]
    """For each curve, the bytes of the weights and of one user's cache."""
    reserve: float
    """The share of the memory that stays free."""

    def users_at(self, memory_bytes: float) -> tuple[int, ...]:
        """Return the number of users that fit in this memory, per curve."""
        usable = math.floor(memory_bytes * (1 - self.reserve))
        return tuple(max(0, (usable - weights) // user) for weights, user in self.loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPoint(Quality):
    """The quality of a variant trained by the papers, and its place in a chart."""

    share: float
    """The cache as a share of QKV's."""
    real_low: float
    """The estimated change per real token, for the largest share of real tokens."""
    real_high: float
    """The estimated change for the smallest plausible share of real tokens."""
    status: Status
    """Whether another variant of its size dominates this one, and how surely."""
    dominated_by: tuple[str, ...]
    """The variants with no larger cache and no worse quality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoints:
    """The papers' changes of perplexity against cache, for one size."""

    size: Size
    points: tuple[PublishedPoint, ...]
    """Every trained variant, largest cache first."""
    caveats: tuple[str, ...]
    """The limitations of the figures; the first names their source."""

    @property
    def frontier(self) -> tuple[PublishedPoint, ...]:
        """The points on the frontier, smallest cache first."""
        kept = [point for point in self.points if point.status == "frontier"]
        return tuple(sorted(kept, key=lambda point: point.share))


def compute_cache_curves(plan: Plan) -> CacheCurves | None:
    """Compute the cache of one user against the context, or ``None`` without any cache.

    In the plan's first format, with the peak during decoding.
    """
    model, demand, cache = plan.model, plan.demand, plan.formats[0]
    if not model.is_causal:
        return None
    low, high, contexts = _sample_contexts(model, demand.context)
    rows = plan.candidates.rows
    found: dict[tuple[int, ...], list[int]] = {}
    for order, row in enumerate(rows):
        held = tuple(demand.user_bytes(row.model, cache, context=tokens) for tokens in contexts)
        found.setdefault(held, []).append(order)
    curves = [
        Curve(
            names=tuple(name_row(rows[order]) for order in same),
            label=rows[same[0]].label,
            order=same[0],
            points=tuple(zip(map(float, contexts), map(float, held), strict=True)),
        )
        for held, same in found.items()
        if min(held) > 0
    ]
    if not curves:
        return None
    return CacheCurves(
        curves=tuple(sorted(curves, key=lambda curve: -curve.points[-1][1])),
        cache=cache,
        low=low,
        high=high,
        context=demand.context,
        max_tokens=model.max_tokens,
        device=demand.device.title,
        memory_bytes=demand.device.memory_bytes,
        free_bytes=demand.usable_bytes - demand.weight_bytes(model),
        left_out=tuple(
            name_row(rows[order])
            for held, same in found.items()
            if min(held) <= 0
            for order in same
        ),
    )


def compute_user_curves(plan: Plan) -> UserCurves | None:
    """Compute the users of one device against its memory, or ``None`` if none fits within the axis.

    For one replica on one device, in the plan's first cache format.
    """
    model, demand, cache = plan.model, plan.demand, plan.formats[0]
    if not model.is_causal:
        return None
    rows = plan.candidates.rows
    loads = [(demand.weight_bytes(row.model), demand.user_bytes(row.model, cache)) for row in rows]
    usable = 1 - demand.reserve
    memory = demand.device.memory_bytes
    firsts = [(weights + user) / usable for weights, user in loads if user]
    low, high = _memory_range(memory, firsts)
    found: dict[tuple[int, int], list[int]] = {}
    for order, load in enumerate(loads):
        found.setdefault(load, []).append(order)
    curves: list[tuple[Curve, tuple[int, int]]] = []
    left_out: list[str] = []
    for (weights, user), same in found.items():
        most = 0 if user == 0 else int((high * usable - weights) // user)
        names = tuple(name_row(rows[order]) for order in same)
        if most < 1:
            left_out.extend(names)
            continue
        steps = tuple(_steps(weights, user, usable, most, (low, high)))
        curve = Curve(names=names, label=rows[same[0]].label, order=same[0], points=steps)
        curves.append((curve, (weights, user)))
    if not curves:
        return None
    curves.sort(key=lambda pair: -pair[0].points[-1][1])
    return UserCurves(
        curves=tuple(curve for curve, _ in curves),
        loads=tuple(load for _, load in curves),
        cache=cache,
        low=low,
        high=high,
        context=demand.context,
        device=demand.device.title,
        memory_bytes=memory,
        reserve=demand.reserve,
        left_out=tuple(left_out),
    )


def compute_quality_points(size: Size) -> QualityPoints:
    """Compute the papers' quality against cache at one size, with its limitations."""
    found = qualities(size)
    placed = {one.variant: one for one in frontier_positions(size)}
    whole = placed[BASELINE].cost
    points: list[PublishedPoint] = []
    for quality in found:
        position = placed[quality.variant]
        real_low, real_high = (
            change_per_real_token(quality.change_percent, fraction) for fraction in REAL_RANGE
        )
        points.append(
            PublishedPoint(
                **dataclasses.asdict(quality),
                share=position.cost / whole,
                real_low=real_low,
                real_high=real_high,
                status=position.status,
                dominated_by=position.dominated_by,
            )
        )
    points.sort(key=lambda point: (-point.share, point.change_percent))
    return QualityPoints(size=size, points=tuple(points), caveats=collect_caveats(found))


def name_row(row: Candidate) -> str:
    """Return the name of a row, with a star for the given weights."""
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
    """Return four contexts per doubling, and those where a curve may bend, between two powers of 2.

    These are around the context, the model's maximum and its shortest window.
    """
    windows = _windows(model)
    shortest = min([DEFAULT_FIRST, context // 4, *(window // 2 for window in windows)])
    low = 2 ** math.floor(math.log2(max(shortest, FEWEST_TOKENS)))
    high = 2 ** math.ceil(math.log2(max(2 * context, 2 * (model.max_tokens or 0), 16 * low)))
    low = max(low, high >> MOST_DOUBLINGS)
    first, last = low.bit_length() - 1, high.bit_length() - 1
    regular = {round(2 ** (quarter / 4)) for quarter in range(4 * first, 4 * last + 1)}
    bends = {context, model.max_tokens or context}
    bends |= {window + shift for window in windows for shift in (-1, 0)}
    return low, high, sorted(tokens for tokens in regular | bends if low <= tokens <= high)


def _memory_range(memory: int, firsts: Sequence[float]) -> tuple[float, float]:
    """Return powers of two around the device that include the first user of every row in reach."""
    reach = [first for first in firsts if memory / MOST_MEMORY <= first <= memory * MOST_MEMORY]
    low = min([memory / 4, *reach])
    high = max([memory * 4, *(2 * first for first in reach)])
    return 2.0 ** math.floor(math.log2(low)), 2.0 ** math.ceil(math.log2(high))


def _steps(
    weights: int, user: int, usable: float, most: int, reach: tuple[float, float]
) -> Iterator[Point]:
    """Yield the corners of users against memory, within the axis."""
    low, high = reach
    first = max(1, int((low * usable - weights) // user))
    yield max(low, (weights + first * user) / usable), float(first)
    count = first + 1
    while count <= most:
        place = (weights + count * user) / usable
        if count <= SINGLE_STEPS:
            yield place, float(count - 1)
        yield place, float(count)
        count = count + 1 if count < SINGLE_STEPS else max(count + 1, round(count * 1.04))
    yield high, float(most)
