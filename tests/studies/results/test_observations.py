"""The states of planned runs, and the choice of learning rates."""

import dataclasses
import math

import pytest

from qkvary.studies.results.observations import choose_learning_rates, count, observe
from tests.studies.made_up import by_variant, make_record, make_records, make_setting, make_study


def test_every_planned_run_is_counted_once() -> None:
    study = make_study()
    outcomes = {
        "QKV": [0.9, "failed", None, "diverged", math.nan],
        "Q-K=V": [0.9, 0.8, math.inf, None, 0.7],
    }
    observations = observe(study, make_records(study, by_variant(outcomes)))
    counts = count(one.row for one in observations)
    assert (counts.planned, counts.done, counts.failed) == (10, 4, 1)
    assert (counts.diverged, counts.missing) == (3, 2)
    assert counts.done + counts.failed + counts.diverged + counts.missing == counts.planned
    assert not counts.complete


def test_a_result_that_is_not_finite_is_a_divergence_and_says_so() -> None:
    study = make_study(seeds=(1,))
    records = make_records(study, by_variant({"QKV": [math.nan], "Q-K=V": [0.5]}))
    diverged, done = observe(study, records)
    assert (diverged.row.state, diverged.row.value) == ("diverged", None)
    assert diverged.row.message == "the result is not a finite number"
    assert dict(diverged.row.metrics)["test_accuracy"] is None
    assert (done.row.state, done.row.value, done.validation) == ("done", 0.5, 0.5)


def test_a_value_of_a_failed_run_is_not_a_result() -> None:
    study = make_study(seeds=(1,), variants=("QKV",))
    (cell,) = study.cells()
    record = dataclasses.replace(make_record(cell, 0.9), status="failed", message="out of memory")
    (observation,) = observe(study, [record])
    assert observation.row.value is None
    assert observation.validation is None
    assert (observation.row.state, observation.row.message) == ("failed", "out of memory")


RATES = (1e-4, 1e-3, 1e-2)


def test_a_learning_rate_is_chosen_on_validation_only() -> None:
    study = make_study(seeds=(1, 2), variants=("QKV",), learning_rates=RATES)
    validation = {1e-4: 0.7, 1e-3: 0.9, 1e-2: 0.8}
    test = {1e-4: 0.7, 1e-3: 0.5, 1e-2: 0.99}
    records = [
        make_record(
            cell,
            0.0,
            metrics={
                "test_accuracy": test[cell.learning_rate],
                "validation_accuracy": validation[cell.learning_rate],
            },
        )
        for cell in study.cells()
    ]
    marked, table = choose_learning_rates(study, observe(study, records))
    assert {run.row.learning_rate for run in marked if run.row.selected} == {1e-3}
    assert [(row.learning_rate, row.chosen, row.at_the_edge) for row in table] == [
        (1e-4, False, False),
        (1e-3, True, False),
        (1e-2, False, False),
    ]
    assert [row.validation_mean for row in table] == pytest.approx([0.7, 0.9, 0.8])


def test_a_score_of_the_test_alone_leaves_the_choice_to_the_validation() -> None:
    """As ``document_loss`` of packed rows, which no validation finds."""
    setting = dataclasses.replace(make_setting("reverse"), table="own", metric="document_loss")
    study = make_study(setting, seeds=(1, 2), variants=("QKV",), learning_rates=RATES)
    loss = {1e-4: 2.5, 1e-3: 2.25, 1e-2: 3.5}
    records = [
        make_record(
            cell,
            0.0,
            metric="test_loss",
            higher_is_better=False,
            metrics={
                "test_loss": 2.0,
                "test_document_loss": 1.0,
                "validation_loss": loss[cell.learning_rate],
            },
        )
        for cell in study.cells()
    ]
    marked, table = choose_learning_rates(study, observe(study, records))
    assert {run.row.learning_rate for run in marked if run.row.selected} == {1e-3}
    assert [row.chosen for row in table] == [False, True, False]
    assert [row.validation_mean for row in table] == pytest.approx(list(loss.values()))
    assert {run.row.value for run in marked} == {1.0}


def test_a_rate_at_which_a_run_diverged_is_not_chosen_over_one_that_held() -> None:
    study = make_study(seeds=(1, 2), variants=("QKV",), learning_rates=RATES)
    outcomes = {1e-4: [0.6, 0.6], 1e-3: [0.7, 0.7], 1e-2: [0.99, "diverged"]}
    records = make_records(study, lambda cell: outcomes[cell.learning_rate][cell.seed - 1])
    _, table = choose_learning_rates(study, observe(study, records))
    assert [row.learning_rate for row in table if row.chosen] == [1e-3]
    assert table[2].counts.diverged == 1
