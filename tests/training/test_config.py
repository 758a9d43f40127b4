import dataclasses

import pytest

from qkvary.training.config import (
    ExecutionConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from tests.training.toy import toy_run

OPTIMIZER = OptimizerConfig(learning_rate=0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "sgd"}, "expected optimizer out of adam, adamw, got 'sgd'"),
        ({"decay": "none"}, "expected decay out of all, matrices, got 'none'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\)"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
    ],
)
def test_an_optimizer_without_meaning_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**{"learning_rate": 0.1, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "linear"}, "expected schedule out of constant, cosine_warmup, .*, multistep,"),
        ({"warmup_steps": 3}, "the constant schedule has no warm-up"),
        ({"floor": 0.1}, "floor and decay_steps require the schedule cosine, got constant"),
        ({"name": "cosine", "floor": 1.5}, "floor must be between 0 and 1, got 1.5"),
        ({"name": "cosine", "warmup_steps": 5, "decay_steps": 5}, "decay_steps must be greater"),
    ],
)
def test_a_schedule_without_meaning_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["steps", "batch_size", "evaluate_every", "log_every"])
def test_training_needs_positive_counts(name: str) -> None:
    fields = {"steps": 3, "batch_size": 5, "evaluate_every": 2, "log_every": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        TrainingConfig(optimizer=OPTIMIZER, **fields)


def test_the_key_depends_on_all_that_matters() -> None:
    run = toy_run()
    changed = [
        dataclasses.replace(run, seed=4),
        dataclasses.replace(
            run,
            training=dataclasses.replace(run.training, execution=ExecutionConfig(precision="bf16")),
        ),
        dataclasses.replace(run, dtype="float64"),
        dataclasses.replace(run, device="cuda"),
        dataclasses.replace(run, task=dataclasses.replace(run.task, length=4)),
        toy_run(steps=41),
        toy_run(clip=None),
    ]
    keys = [run.run_key(), run.run_key("other data"), *(other.run_key() for other in changed)]
    assert len(set(keys)) == len(keys)
    assert run.run_key(run.task.data_fingerprint) == run.run_key() == toy_run().run_key()


def test_the_key_keeps_with_other_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    key = toy_run().run_key()
    monkeypatch.setattr("qkvary.training.config.ROUNDING_VERSION", 999)
    assert toy_run().run_key() == key


def test_the_key_changes_with_the_numerics_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = toy_run().run_key()
    monkeypatch.setattr("qkvary.training.config.NUMERICS_VERSION", 999)
    assert toy_run().run_key() != before
