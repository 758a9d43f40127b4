"""Pareto frontiers of quality and cost. Never imports torch.

A variant is dominated by another that costs no more and is no worse, one of the two strictly. Since
means of few seeds are noisy, it is called dominated without qualification only if the paired
difference shows the cheaper variant to be better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkvary.costs.pareto import dominates
from qkvary.studies.results.result_tables import PairwiseDifferences
from qkvary.studies.results.summary import (
    CostAxis,
    Difference,
    Frontier,
    FrontierPoint,
    FrontierStatus,
    ResultTable,
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
    """A variant with known cost and quality."""

    variant: str
    cost: float
    quality: float
    difference: Difference | None


def build_frontiers(table: ResultTable, pairwise: PairwiseDifferences) -> tuple[Frontier, ...]:
    """Return one frontier for every cost that the table has."""
    charts = [_build_frontier(table, axis, pairwise) for axis in AXES]
    return tuple(chart for chart in charts if chart.points)


def cost_of(row: VariantRow, axis: CostAxis) -> float | None:
    """Return the cost of a row on an axis."""
    if axis == "training_seconds":
        return row.training_seconds
    if row.costs is None:
        return None
    if axis == "parameters":
        return row.costs.parameters_total
    if axis == "macs_per_token":
        return row.costs.macs_per_token
    return row.costs.cache_bytes_per_token


def _build_frontier(table: ResultTable, axis: CostAxis, pairwise: PairwiseDifferences) -> Frontier:
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
        metric_title=table.metric_title,
        higher_is_better=table.higher_is_better,
        points=tuple(_point(one, candidates, sign, pairwise) for one in candidates),
        left_out=tuple(left_out),
    )


def _point(
    point: _Candidate, others: Sequence[_Candidate], sign: float, pairwise: PairwiseDifferences
) -> FrontierPoint:
    dominating = [other for other in others if _dominates(other, point, sign)]
    sure = [
        other.variant for other in dominating if _better(pairwise, other.variant, point.variant)
    ]
    standing: FrontierStatus = "frontier"
    if dominating:
        standing = "dominated" if sure else "dominated by the means only"
    return FrontierPoint(
        variant=point.variant,
        cost=point.cost,
        quality=point.quality,
        difference=point.difference,
        standing=standing,
        dominated_by=tuple(other.variant for other in dominating),
        sentence=_sentence(point, others, dominating, sure, pairwise),
    )


def _dominates(one: _Candidate, other: _Candidate, sign: float) -> bool:
    return dominates((one.cost, -sign * one.quality), (other.cost, -sign * other.quality))


def _better(pairwise: PairwiseDifferences, one: str, other: str) -> bool:
    difference = pairwise.get((one, other))
    return difference is not None and difference.verdict == "better"


def _worse(pairwise: PairwiseDifferences, one: str, other: str) -> bool:
    difference = pairwise.get((one, other))
    return difference is not None and difference.verdict == "worse"


def _sentence(
    point: _Candidate,
    others: Sequence[_Candidate],
    dominating: Sequence[_Candidate],
    sure: Sequence[str],
    pairwise: PairwiseDifferences,
) -> str:
    if sure:
        return f"{listed(sure, 'or')} costs no more and is better"
    if dominating:
        names = listed([other.variant for other in dominating], "or")
        return f"{names} costs no more and has the better mean, which may be chance"
    rivals = [
        other.variant
        for other in others
        if other.cost < point.cost and not _worse(pairwise, other.variant, point.variant)
    ]
    if rivals:
        names = listed(rivals, "or")
        return f"on the frontier, but not shown to be better than {names}, which costs less"
    return "on the frontier"
