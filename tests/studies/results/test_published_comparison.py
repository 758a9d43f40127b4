"""The comparison of published figures with ours."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from qkvary.papers.recomputation import published_tables
from qkvary.studies.catalog import load_study
from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import PublishedComparison
from qkvary.studies.study import Study
from tests.studies.made_up import make_record, make_setting, make_study

TASKS = ("reverse", "sort", "sub", "swap", "copy")
FIVE = make_study(
    *(make_setting(name, name) for name in TASKS), variants=("QKV", "Q=K-V", "MQA"), seeds=(1, 2)
)


def compare(
    study: Study, name: str, value: float = 0.5, metric: str = "test_accuracy"
) -> PublishedComparison:
    records = [
        make_record(cell, 0.0, metric=metric, metrics={metric: value}) for cell in study.cells()
    ]
    study = dataclasses.replace(study, published=published_tables(name))
    (comparison,) = summarise(study, records).published
    return comparison


def test_a_column_is_compared_with_its_task_and_the_average_with_the_average() -> None:
    comparison = compare(FIVE, "three-projections-table-2")
    cells = {(cell.variant, cell.column): cell for cell in comparison.cells}
    assert set(cells) == {(v, c) for v in ("QKV", "Q=K-V") for c in (*TASKS, "average")}
    cell = cells["QKV", "reverse"]
    assert (cell.published, cell.ours) == (0.698, 0.5)
    assert cell.deviation == pytest.approx(-0.198)
    assert cells["QKV", "average"].ours == pytest.approx(0.5)
    assert "(Q=K-V)+" in comparison.not_compared
    assert "MQA" not in comparison.not_compared


def test_exchanged_columns_are_compared_by_their_contents() -> None:
    cells = {(cell.variant, cell.column): cell for cell in compare(FIVE, "key-value-table-2").cells}
    assert cells["QKV", "swap"].published == 1.0
    assert cells["QKV", "swap"].recomputes == "no"
    assert cells["QKV", "sub"].published == 0.588
    assert cells["QKV", "reverse"].published_std == 0.38


def test_a_published_mean_is_expected_where_a_repeat_of_our_runs_would_lie() -> None:
    """As many further runs of the same kind: the interval of a test of two means of one spread."""
    study = load_study("numbers-paper")
    ours = [0.87, 0.89, 0.86, 0.9, 0.88]
    records = [
        make_record(cell, 0.0, metric="test_loss", metrics={"test_loss": ours[cell.seed]})
        for cell in study.cells()
    ]
    comparison = summarise(study, records).published[0]
    (cell,) = (
        one for one in comparison.cells if (one.variant, one.column) == ("QKV", "loss_1e-3_16")
    )
    half = scipy.stats.t.ppf(0.975, 4) * np.std(ours, ddof=1) * np.sqrt(2 / 5)
    assert cell.repeat_low == pytest.approx(np.mean(ours) - half)
    assert cell.repeat_high == pytest.approx(np.mean(ours) + half)
    assert comparison.published_runs == 5
    assert cell.repeats is True
    (other,) = (
        one for one in comparison.cells if (one.variant, one.column) == ("QKV", "loss_1e-4_128")
    )
    assert other.repeats is False
    # A mean of the eight published losses is no further result.
    assert len([one for one in comparison.cells if one.repeats is not None]) == 3 * (8 + 1)
    assert len(comparison.repeats) == 3 * 8
    alone = summarise(dataclasses.replace(study, seeds=(0,)), records).published[0].cells
    assert all(one.repeats is None for one in alone)
