import dataclasses
from typing import Any

import pytest

from qkvary.training.config import (
    ExecutionConfig,
    GuardConfig,
    OptimizerConfig,
    ScheduleConfig,
    TemperatureSchedule,
    TrainingConfig,
)
from tests.training.toy import toy_run

OPTIMIZER = OptimizerConfig(learning_rate=0.1)
SLOW = OptimizerConfig(learning_rate=0.1, betas=(0.05, 0.9))
CONSTANT, COSINE = ScheduleConfig(), ScheduleConfig(name="cosine")
ONE_CYCLE = ScheduleConfig(name="one_cycle")
GUARDS = GuardConfig()
ANNEALED = TemperatureSchedule(start=2.0)
TRAINING = TrainingConfig(optimizer=OPTIMIZER, steps=3, batch_size=5, evaluate_every=2)


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (OPTIMIZER, {"name": "sgd"}, "expected optimizer to be one of adam, adamw, got 'sgd'"),
        (OPTIMIZER, {"decay": "none"}, "expected decay to be one of all, matrices, got 'none'"),
        (OPTIMIZER, {"learning_rate": 0.0}, "learning_rate must be positive and finite, got 0.0"),
        (OPTIMIZER, {"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\)"),
        (OPTIMIZER, {"weight_decay": -0.1}, "weight_decay finite and at least 0, got -0.1"),
        (
            CONSTANT,
            {"name": "linear"},
            "schedule to be one of constant, cosine_warmup, .*, multistep,",
        ),
        (CONSTANT, {"warmup_steps": 3}, "the constant schedule has no warm-up"),
        (CONSTANT, {"floor": 0.1}, "floor and decay_steps require the schedule cosine, got const"),
        (CONSTANT, {"name": "one_cycle", "warmup_steps": 3}, "one_cycle schedule has no warm-up"),
        (COSINE, {"floor": 1.5}, "expected floor from 0 to 1, got 1.5"),
        (COSINE, {"warmup_steps": 5, "decay_steps": 5}, "decay_steps must be greater"),
        (GUARDS, {"on_nonfinite": "ignore"}, "on_nonfinite to be one of stop, skip, got 'ignore'"),
        (GUARDS, {"max_skips": -1}, "at least 0 for max_skips, got -1"),
        (GUARDS, {"max_skips": 100}, "at most 99 for max_skips, got 100"),
        (GUARDS, {"skip_gradient_norm": 0.0}, "skip_gradient_norm must be positive or None, got"),
        (ANNEALED, {"start": 0.0}, "start must be positive and finite, got 0.0"),
        (ANNEALED, {"steps": 0}, "steps of TemperatureSchedule in 1 ... 2.40, got 0"),
        (TRAINING, {"steps": 0}, "steps of TrainingConfig in 1 ... 2.40, got 0"),
        (TRAINING, {"batch_size": 0}, "batch_size of TrainingConfig in 1 ... 2.40, got 0"),
        (TRAINING, {"evaluate_every": 0}, "evaluate_every of TrainingConfig in 1 "),
        (TRAINING, {"log_every": 0}, "log_every of TrainingConfig in 1 ... 2.40, got 0"),
        (
            TRAINING,
            {"schedule": ONE_CYCLE, "optimizer": SLOW},
            r"lowers the first beta by 0\.1, got 0\.05",
        ),
    ],
)
def test_a_configuration_without_meaning_is_refused(
    config: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **fields)


def test_the_key_depends_on_all_that_matters() -> None:
    run = toy_run()
    changed = [
        dataclasses.replace(run, seed=4),
        toy_run(execution=ExecutionConfig(precision="bf16")),
        dataclasses.replace(run, dtype="float64"),
        dataclasses.replace(run, device="cuda"),
        dataclasses.replace(run, task=dataclasses.replace(run.task, length=4)),
        toy_run(steps=41),
        toy_run(clip=None),
    ]
    keys = [run.run_key, *(other.run_key for other in changed)]
    assert len(set(keys)) == len(keys)
    assert run.run_key == toy_run().run_key


def test_the_key_keeps_with_other_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    key = toy_run().run_key
    monkeypatch.setattr("qkvary.training.config.ROUNDING_VERSION", 999)
    assert toy_run().run_key == key


def test_the_key_changes_with_the_numerics_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = toy_run().run_key
    monkeypatch.setattr("qkvary.training.config.NUMERICS_VERSION", 999)
    assert toy_run().run_key != before
