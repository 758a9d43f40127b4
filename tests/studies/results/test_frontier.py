"""Pareto fronts with their uncertainty."""

from qkvary.studies.results.frontier import build_frontiers
from qkvary.studies.results.summary import (
    CostAxis,
    CostRow,
    Counts,
    Difference,
    Frontier,
    FrontierPoint,
    ResultTable,
    VariantRow,
    Verdict,
)


def row(variant: str, mean: float | None, parameters: int, cache: float | None) -> VariantRow:
    return VariantRow(
        variant=variant,
        counts=Counts(planned=5, done=5, failed=0, diverged=0, missing=0),
        mean=mean,
        std_seeds=0.01,
        std_settings=None,
        difference=None,
        solving=None,
        training_seconds=None,
        steps_per_second=None,
        costs=CostRow(
            parameters=(("total", parameters),),
            macs_per_token=7.0,
            macs_per_sequence=49.0,
            cache_bytes_per_token=cache,
        ),
        learning_rates=(1e-3,),
    )


def difference(verdict: Verdict) -> Difference:
    return Difference(
        baseline="?",
        pairs=5,
        pairs_planned=5,
        units=5,
        unit="seed",
        mean=0.1,
        low=None,
        high=None,
        low_single=None,
        high_single=None,
        p_value=None,
        p_adjusted=None,
        comparisons=3,
        detectable=None,
        verdict=verdict,
        sentence="",
    )


def charts(*rows: VariantRow, higher: bool = True, **pairwise: Verdict) -> dict[CostAxis, Frontier]:
    """Charts of a table; a difference is given as ``A_B="better"``."""
    table = ResultTable(
        name="reverse",
        kind="task",
        tasks=("reverse",),
        settings=("reverse",),
        metric="test_accuracy" if higher else "test_loss",
        higher_is_better=higher,
        rows=rows,
    )
    opposite: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
    known: dict[tuple[str, str], Difference] = {}
    for pair, verdict in pairwise.items():
        one, other = pair.split("_")
        known[one, other] = difference(verdict)
        known[other, one] = difference(opposite.get(verdict, verdict))
    return {chart.axis: chart for chart in build_frontiers(table, known)}


def points(chart: Frontier) -> dict[str, FrontierPoint]:
    return {point.variant: point for point in chart.points}


def test_a_cheaper_and_better_variant_dominates_for_certain() -> None:
    chart = charts(row("A", 0.9, 100, None), row("B", 0.5, 200, None), A_B="better")["parameters"]
    found = points(chart)
    assert found["A"].standing == "frontier"
    assert found["A"].sentence == "on the frontier"
    assert (found["B"].standing, found["B"].dominated_by) == ("dominated", ("A",))
    assert found["B"].sentence == "A costs no more and is better"


def test_a_lead_that_is_not_distinguished_is_one_of_the_means_only() -> None:
    chart = charts(row("A", 0.9, 100, None), row("B", 0.89, 200, None), A_B="not distinguished")[
        "parameters"
    ]
    assert points(chart)["B"].standing == "dominated by the means only"
    assert points(chart)["B"].sentence == (
        "A costs no more and has the better mean, which may be chance"
    )


def test_a_loss_is_better_where_it_is_lower() -> None:
    rows = (row("A", 1.5, 100, None), row("B", 1.9, 200, None))
    chart = charts(*rows, higher=False, A_B="better")["parameters"]
    assert points(chart)["B"].standing == "dominated"
    assert points(chart)["A"].standing == "frontier"
