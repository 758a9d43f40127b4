"""Pareto fronts with their uncertainty."""

from collections.abc import Sequence

from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import FrontierPoint
from tests.studies.made_up import make_record, make_study

HIGH, LOW = [0.91, 0.95, 0.90, 0.97, 0.93], [0.81, 0.86, 0.83, 0.85, 0.80]
PARAMETERS = {"QKV": 200, "Q-K=V": 100}


def points(
    values: dict[str, Sequence[float]], metric: str = "test_accuracy"
) -> dict[str, FrontierPoint]:
    """The points of two variants, of which the second has half of the parameters."""
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


def test_a_cheaper_and_better_variant_dominates_for_certain() -> None:
    found = points({"QKV": LOW, "Q-K=V": HIGH})
    assert (found["Q-K=V"].standing, found["Q-K=V"].cost) == ("frontier", 100)
    assert (found["QKV"].standing, found["QKV"].dominated_by) == ("dominated", ("Q-K=V",))


def test_a_lead_that_is_not_distinguished_is_one_of_the_means_only() -> None:
    lead = [value + 0.002 * (1, -1, 1, -1, 1)[place] for place, value in enumerate(HIGH)]
    assert points({"QKV": HIGH, "Q-K=V": lead})["QKV"].standing == "dominated by the means only"


def test_a_loss_is_better_where_it_is_lower() -> None:
    found = points({"QKV": HIGH, "Q-K=V": LOW}, "test_loss")
    assert [point.standing for point in found.values()] == ["dominated", "frontier"]


def test_who_costs_more_and_is_better_is_on_the_frontier() -> None:
    found = points({"QKV": HIGH, "Q-K=V": LOW})
    assert [point.standing for point in found.values()] == ["frontier", "frontier"]
