"""Studies that never ran, and records for them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.canonical import to_dict
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.studies.records import Record
from qkvary.studies.results.summary import Difference, ResultTable
from qkvary.studies.study import Cell, Setting, Study
from qkvary.tasks.config import SequenceTaskConfig, SequenceTaskName
from qkvary.training.config import OptimizerConfig, TrainingConfig

Outcome = float | str | None
"""A test accuracy; or ``failed``, ``diverged``; or None for a run without a record."""


def make_setting(
    name: str, task: SequenceTaskName = "reverse", length: int = 7, steps: int = 500
) -> Setting:
    return Setting(
        name=name,
        task=SequenceTaskConfig(name=task, length=length),
        network=EncoderConfig(
            attention=AttentionConfig(d_model=12, num_heads=4),
            block=BlockConfig(d_ff=20),
            num_layers=2,
            vocabulary=10,
            max_tokens=length,
            classes=10,
        ),
        training=TrainingConfig(
            steps=steps,
            batch_size=5,
            optimizer=OptimizerConfig(learning_rate=1e-3),
            evaluate_every=50,
            solve_threshold=0.99,
        ),
    )


def make_study(
    *settings: Setting,
    variants: Sequence[str] = ("QKV", "Q-K=V"),
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    **more: Any,
) -> Study:
    return Study(
        name="made-up",
        question="Is anything different?",
        description="Nothing was run.",
        settings=settings or (make_setting("reverse"),),
        variants=tuple(variants),
        seeds=tuple(seeds),
        **more,
    )


def make_record(cell: Cell, outcome: float | str, **more: Any) -> Record:
    """A record of one run; ``more`` replaces fields."""
    status = outcome if isinstance(outcome, str) else "done"
    value = outcome if isinstance(outcome, float) else None
    metrics = {"test_accuracy": value, "validation_accuracy": value, "steps_to_solve": None}
    if value is None:
        metrics = {"steps_to_solve": None}
    record = Record(
        run_key=cell.run_key,
        config=to_dict(cell.run),
        task=cell.run.task.name,
        variant=cell.variant,
        seed=cell.seed,
        status=status,  # type: ignore[arg-type]
        message="" if status == "done" else f"the run {status}",
        metric="test_accuracy",
        higher_is_better=True,
        metrics=metrics,
        costs={
            "parameters": {"total": 1_000, "attention": 300},
            "macs_per_token": 77,
            "macs_per_sequence": 539,
            "cache_bytes_per_token": None,
        },
        timing={
            "training_seconds": 2.0,
            "evaluation_seconds": 0.5,
            "total_seconds": 3.0,
            "cpu_seconds": 2.5,
            "steps_per_second": 250.0,
        },
        environment={"qkvary": "0.1.0", "torch": "2.13.0"},
        started="2026-01-02T03:04:05Z",
        ended="2026-01-02T03:04:08Z",
    )
    return dataclasses.replace(record, **more)


def make_records(study: Study, outcome: Callable[[Cell], Outcome]) -> list[Record]:
    """Records for all runs of a study that have an outcome."""
    found = [(cell, outcome(cell)) for cell in study.cells()]
    return [make_record(cell, result) for cell, result in found if result is not None]


def gap_of(table: ResultTable, variant: str) -> Difference:
    """Return the difference of a variant to the baseline."""
    gap = table.row(variant).difference
    assert gap is not None
    return gap


def ends_of(gap: Difference) -> tuple[float, float]:
    """Return the ends of its interval."""
    assert gap.low is not None
    assert gap.high is not None
    return gap.low, gap.high


def by_variant(values: dict[str, Sequence[Outcome]]) -> Callable[[Cell], Outcome]:
    """Outcomes of seeds 1, 2, ... by variant, the same in all settings."""
    return lambda cell: values[cell.variant][cell.seed - 1]
