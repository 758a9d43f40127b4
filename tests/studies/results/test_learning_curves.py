"""Learning curves averaged over seeds."""

import math
from dataclasses import replace
from typing import Any

import pytest

from qkvary.studies.results.learning_curves import build_curves
from qkvary.studies.results.observations import observe
from qkvary.studies.results.summary import LearningCurve
from qkvary.studies.study import Study
from tests.studies.made_up import make_record, make_setting, make_study

STUDY = make_study(seeds=(1, 2), variants=("QKV",))


def curves(*logs: list[dict[str, Any]]) -> dict[str, LearningCurve]:
    keys = [cell.run_key for cell in STUDY.cells()]
    events = dict(zip(keys, logs, strict=False))
    return {curve.quantity: curve for curve in build_curves(observe(STUDY, []), events)}


def train(step: int, loss: float, seconds: float = 0.0) -> dict[str, Any]:
    return {"event": "train", "step": step, "loss": loss, "seconds": seconds}


def test_a_curve_is_the_mean_with_the_range_of_all_seeds() -> None:
    curve = curves(
        [train(10, 2.0, 1.0), train(20, 1.0, 2.0)], [train(10, 4.0, 3.0), train(20, 2.0, 6.0)]
    )["train loss"]
    assert (curve.setting, curve.variant, curve.steps) == ("reverse", "QKV", (10, 20))
    assert (curve.mean, curve.low, curve.high) == ((3.0, 1.5), (2.0, 1.0), (4.0, 2.0))
    assert (curve.seconds, curve.runs) == ((2.0, 4.0), (2, 2))


def test_runs_that_end_early_or_diverge_leave_the_others_and_the_count_says_so() -> None:
    curve = curves(
        [train(10, 2.0), train(20, 1.0)], [train(10, 4.0), train(20, math.nan), train(30, math.inf)]
    )["train loss"]
    assert (curve.steps, curve.runs) == ((10, 20), (2, 1))
    assert curve.mean == pytest.approx((3.0, 1.0))


def solving_study(stops: bool) -> Study:
    setting = make_setting("reverse")
    training = replace(setting.training, stop_when_solved=stops)
    return make_study(replace(setting, training=training), seeds=(1, 2), variants=("QKV",))


@pytest.mark.parametrize(
    ("stops", "solved", "status"),
    [
        (True, 20, "done"),
        (True, None, "done"),
        (True, 20, "failed"),
        (False, 20, "done"),
    ],
)
def test_a_run_that_stopped_when_it_had_solved_the_task_keeps_its_last_value(
    stops: bool, solved: int | None, status: str
) -> None:
    """One that failed, did not solve it or does not stop then leaves the mean to the others."""
    study = solving_study(stops)
    first, second = study.cells()
    metrics = {"steps_to_solve": solved, "test_accuracy": 1.0, "validation_accuracy": 1.0}
    record = make_record(first, 1.0, status=status, metrics=metrics)
    logs = {
        first.run_key: [train(10, 2.0, 1.0), train(20, 0.5, 2.0)],
        second.run_key: [train(10, 4.0, 1.5), train(20, 3.5, 2.5), train(30, 2.5, 3.5)],
    }
    (curve,) = build_curves(observe(study, [record, make_record(second, 0.5)]), logs)
    assert curve.steps == (10, 20, 30)
    keeps = stops and solved is not None and status == "done"
    assert curve.mean == ((3.0, 2.0, 1.5) if keeps else (3.0, 2.0, 2.5))
    assert curve.low == ((2.0, 0.5, 0.5) if keeps else (2.0, 0.5, 2.5))
    assert curve.seconds == ((1.25, 2.25, 2.75) if keeps else (1.25, 2.25, 3.5))
    assert curve.runs == ((2, 2, 2) if keeps else (2, 2, 1))


def test_a_resumed_run_counts_each_step_once() -> None:
    log = [
        train(10, 2.0),
        train(20, 1.0),
        {"event": "resumed", "step": 10, "seconds": 0.0},
        train(20, 1.0),
    ]
    curve = curves(log)["train loss"]
    assert (curve.steps, curve.runs, curve.mean) == ((10, 20), (1, 1), (2.0, 1.0))
