"""Computes Pareto frontiers of quality and cost. Never imports torch.

A variant is dominated by another variant if the other costs no more, is no worse, and is strictly
better in cost or in quality. Since means of few seeds are noisy, a variant is called dominated
without qualification only if the paired difference shows that the other variant is better.
"""

from collections.abc import Mapping

from qkvary.costs.pareto import dominates
from qkvary.studies.results.result_tables import PairwiseDifferences
from qkvary.studies.results.summary import (
    CostAxis,
    Frontier,
    FrontierPoint,
    FrontierStatus,
    ResultTable,
    VariantRow,
    Verdict,
)
from qkvary.text.names import listed

AXES: Mapping[CostAxis, str] = {
    "cache_bytes_per_token": "cache (bytes per token)",
    "parameters": "parameters",
    "macs_per_token": "MACs per token",
    "training_seconds": "training time of one run (seconds; depends on the load of the machine)",
}


def build_frontiers(table: ResultTable, pairwise: PairwiseDifferences) -> tuple[Frontier, ...]:
    """Return one frontier for every cost that the table has."""
    sign = 1.0 if table.higher_is_better else -1.0
    charts: list[Frontier] = []
    for axis, title in AXES.items():
        places = {
            row.variant: (cost, -sign * row.mean)
            for row in table.rows
            if (cost := _cost_of(row, axis)) is not None and row.mean is not None
        }
        rows = [row for row in table.rows if row.variant in places]
        chart = Frontier(
            table=table.name,
            axis=axis,
            axis_title=title,
            metric=table.metric,
            metric_title=table.metric_title,
            higher_is_better=table.higher_is_better,
            points=tuple(_point(row, places, pairwise) for row in rows),
            left_out=tuple(row.variant for row in table.rows if row.variant not in places),
        )
        charts += [chart] if rows else []
    return tuple(charts)


def _cost_of(row: VariantRow, axis: CostAxis) -> float | None:
    if axis == "training_seconds":
        return row.training_seconds
    if row.costs is None:
        return None
    return row.costs.parameters_total if axis == "parameters" else getattr(row.costs, axis)


def _point(
    row: VariantRow, places: Mapping[str, tuple[float, float]], pairwise: PairwiseDifferences
) -> FrontierPoint:
    """Return a variant's point; ``places`` maps each variant to its cost and loss."""

    def is_judged(other: str, verdict: Verdict) -> bool:
        difference = pairwise.get((other, row.variant))
        return difference is not None and difference.verdict == verdict

    own = places[row.variant]
    dominating = [one for one, place in places.items() if dominates(place, own)]
    sure = [one for one in dominating if is_judged(one, "better")]
    rivals = [
        one for one, place in places.items() if place[0] < own[0] and not is_judged(one, "worse")
    ]
    standing: FrontierStatus = "frontier"
    sentence = "on the frontier"
    if sure:
        standing, sentence = "dominated", f"{listed(sure, 'or')} costs no more and is better"
    elif dominating:
        standing = "dominated by the means only"
        names = listed(dominating, "or")
        sentence = f"{names} costs no more and has the better mean, which may be chance"
    elif rivals:
        names = listed(rivals, "or")
        sentence += f", but not shown to be better than {names}, which costs less"
    return FrontierPoint(
        variant=row.variant,
        cost=own[0],
        quality=row.mean or 0.0,
        difference=row.difference,
        standing=standing,
        dominated_by=tuple(dominating),
        sentence=sentence,
    )
