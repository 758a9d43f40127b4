"""Pareto fronts with their uncertainty."""

from collections.abc import Sequence

import pytest

from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import FrontierPoint
from tests.studies.made_up import make_record, make_study

HIGH, LOW = [0.91, 0.95, 0.90, 0.97, 0.93], [0.81, 0.86, 0.83, 0.85, 0.80]
PARAMETERS = {"QKV": 200, "Q-K=V": 100}


def points(values: dict[str, Sequence[float]], metric: str) -> dict[str, FrontierPoint]:
    """The points of two variants; the second has half of the parameters."""
    study = make_study(variants=tuple(values))
    records = [
        make_record(
            cell,
            0.0,
            metric=metric,
            higher_is_better=metric == "test_accuracy",
            metrics={metric: values[cell.variant][cell.seed - 1]},
            costs={"parameters": {"total": PARAMETERS[cell.variant]}, "macs_per_sequence": 7},
        )
        for cell in study.cells()
    ]
    charts = {chart.axis: chart for chart in summarise(study, records).frontiers}
    return {point.variant: point for point in charts["parameters"].points}


LEAD = [value + 0.002 * (1, -1, 1, -1, 1)[place] for place, value in enumerate(HIGH)]
"""A better mean that is not distinguished."""


@pytest.mark.parametrize(
    ("ours", "cheaper", "metric", "standings"),
    [
        (LOW, HIGH, "test_accuracy", ["dominated", "frontier"]),
        (HIGH, LEAD, "test_accuracy", ["dominated by the means only", "frontier"]),
        (HIGH, LOW, "test_loss", ["dominated", "frontier"]),
        (HIGH, LOW, "test_accuracy", ["frontier", "frontier"]),
    ],
)
def test_what_is_cheaper_and_better_for_certain_dominates(
    ours: list[float], cheaper: list[float], metric: str, standings: list[str]
) -> None:
    found = points({"QKV": ours, "Q-K=V": cheaper}, metric)
    assert [found[label].standing for label in PARAMETERS] == standings
    assert found["Q-K=V"].cost == 100
    is_dominated = standings[0] != "frontier"
    assert found["QKV"].dominated_by == (("Q-K=V",) if is_dominated else ())
