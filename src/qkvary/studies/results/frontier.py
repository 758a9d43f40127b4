"""Quality against a cost: who is dominated, and how sure that is.

A variant is dominated by another that costs no more and is no worse, one of the two strictly. Means
of a few seeds decide that only roughly, so a dominated variant is called so without reserve only
where the paired difference between the two shows the cheaper one to be better. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkvary.costs.pareto import dominates
from qkvary.studies.results.result_tables import Duels
from qkvary.studies.results.summary import (
    CostAxis,
    Difference,
    Frontier,
    FrontierPoint,
    ResultTable,
    Standing,
    VariantRow,
)
from qkvary.text.names import listed

AXES: Mapping[CostAxis, str] = {
    "cache_bytes_per_token": "cache (bytes per token)",
    "parameters": "parameters",
    "macs_per_token": "MACs per token",
    "training_seconds": "training time of one run (seconds; depends on the load of the machine)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A variant that has both coordinates."""

    variant: str
    cost: float
    quality: float
    difference: Difference | None


def build_frontiers(table: ResultTable, duels: Duels) -> tuple[Frontier, ...]:
    """Return one chart for every cost that variants of the table have."""
    charts = [_build_frontier(table, axis, duels) for axis in AXES]
    return tuple(chart for chart in charts if chart.points)


def cost_of(row: VariantRow, axis: CostAxis) -> float | None:
    """Return the cost of a row along an axis."""
    if axis == "training_seconds":
        return row.training_seconds
    if row.costs is None:
        return None
    if axis == "parameters":
        return row.costs.parameters_total
    if axis == "macs_per_token":
        return row.costs.macs_per_token
    return row.costs.cache_bytes_per_token


def _build_frontier(table: ResultTable, axis: CostAxis, duels: Duels) -> Frontier:
    candidates: list[_Candidate] = []
    left_out: list[str] = []
    for row in table.rows:
        cost = cost_of(row, axis)
        if cost is None or row.mean is None:
            left_out.append(row.variant)
            continue
        candidates.append(
            _Candidate(variant=row.variant, cost=cost, quality=row.mean, difference=row.difference)
        )
    sign = 1.0 if table.higher_is_better else -1.0
    return Frontier(
        table=table.name,
        axis=axis,
        axis_title=AXES[axis],
        metric=table.metric,
        higher_is_better=table.higher_is_better,
        points=tuple(_point(one, candidates, sign, duels) for one in candidates),
        left_out=tuple(left_out),
    )


def _point(
    point: _Candidate, others: Sequence[_Candidate], sign: float, duels: Duels
) -> FrontierPoint:
    dominating = [other for other in others if _dominates(other, point, sign)]
    sure = [other.variant for other in dominating if _better(duels, other.variant, point.variant)]
    standing: Standing = "frontier"
    if dominating:
        standing = "dominated" if sure else "dominated by the means only"
    return FrontierPoint(
        variant=point.variant,
        cost=point.cost,
        quality=point.quality,
        difference=point.difference,
        standing=standing,
        dominated_by=tuple(other.variant for other in dominating),
        sentence=_sentence(point, others, dominating, sure, duels),
    )


def _dominates(one: _Candidate, other: _Candidate, sign: float) -> bool:
    return dominates((one.cost, -sign * one.quality), (other.cost, -sign * other.quality))


def _better(duels: Duels, one: str, other: str) -> bool:
    duel = duels.get((one, other))
    return duel is not None and duel.verdict == "better"


def _worse(duels: Duels, one: str, other: str) -> bool:
    duel = duels.get((one, other))
    return duel is not None and duel.verdict == "worse"


def _sentence(
    point: _Candidate,
    others: Sequence[_Candidate],
    dominating: Sequence[_Candidate],
    sure: Sequence[str],
    duels: Duels,
) -> str:
    if sure:
        return f"dominated: {listed(sure, 'or')} costs no more and is better"
    if dominating:
        names = listed([other.variant for other in dominating], "or")
        return f"dominated by the means only: {names} costs no more and is not distinguished"
    rivals = [
        other.variant
        for other in others
        if other.cost < point.cost and not _worse(duels, other.variant, point.variant)
    ]
    if rivals:
        names = listed(rivals, "or")
        return f"on the frontier, but not shown to be better than {names}, which costs less"
    return "on the frontier"
