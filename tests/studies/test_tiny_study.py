"""A study of every task from end to end: worker processes, store, records, summary."""

import dataclasses
import math
from pathlib import Path

import pytest

from qkvary.studies.records import Record
from qkvary.studies.results.analysis import summarise
from qkvary.studies.running.runner import RunnerOptions, RunSummary, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.study import Setting, Study
from qkvary.tasks.example_files import maps_from_bytes
from qkvary.training.config import OptimizerConfig, TrainingConfig
from tests.tasks.tiny_networks import tiny_network, tiny_task

TASKS = ("sort", "swap", "characters")


def tiny_study() -> Study:
    training = TrainingConfig(
        steps=7,
        batch_size=5,
        optimizer=OptimizerConfig(learning_rate=3e-3),
        evaluate_every=3,
        log_every=2,
    )
    settings = []
    for name in TASKS:
        task = tiny_task(name)
        if name == "characters":
            task = dataclasses.replace(task, scored_characters=1_009)
        network = tiny_network(name)
        settings.append(Setting(name=name, task=task, network=network, training=training))
    return Study(
        name="tiny",
        question="Does everything hold together?",
        description="Three tasks, two variants, one seed.",
        settings=tuple(settings),
        variants=("QKV", "I-K=V"),
        seeds=(3,),
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSummary]:
    path = tmp_path_factory.mktemp("runs")
    return path, run_study(tiny_study(), Store(path), RunnerOptions(workers=1, quiet=True))


def records(path: Path) -> list[Record]:
    found = [Store(path).record(cell.run_key) for cell in tiny_study().cells()]
    assert all(found)
    return [record for record in found if record]


def test_every_run_is_done(ran: tuple[Path, RunSummary]) -> None:
    path, summary = ran
    assert (summary.planned, summary.done, summary.executed) == (6, 6, 6)
    assert (summary.exit_code, summary.missing, summary.notes) == (0, 0, ())
    assert {record.status for record in records(path)} == {"done"}


def test_records_hold_the_metrics_of_their_task(ran: tuple[Path, RunSummary]) -> None:
    for cell, record in zip(tiny_study().cells(), records(ran[0]), strict=True):
        name = cell.run.task.name
        metrics = record.metrics
        own = "bits_per_character" if name == "characters" else "attention_mass_on_target"
        assert {"test_loss", "validation_loss", "final_train_loss", f"test_{own}"} <= set(metrics)
        assert record.metric == ("test_loss" if name == "characters" else "test_accuracy")
        assert record.higher_is_better == (name != "characters")
        assert all(value is None or math.isfinite(value) for value in metrics.values())


def test_attention_and_curves_are_kept(ran: tuple[Path, RunSummary]) -> None:
    store = Store(ran[0])
    for cell in tiny_study().cells():
        attention = maps_from_bytes(store.file(cell.run_key, "attention.safetensors") or b"")
        assert attention.maps.shape == (2, 3, 7, 7)
        steps = [
            event["step"] for event in store.curve(cell.run_key) if event["event"] == "validation"
        ]
        assert steps == [3, 6, 7]


def test_a_second_start_makes_nothing(ran: tuple[Path, RunSummary]) -> None:
    before = records(ran[0])
    again = run_study(tiny_study(), Store(ran[0]), RunnerOptions(workers=1, quiet=True))
    assert (again.executed, again.done) == (0, 6)
    assert records(ran[0]) == before


def test_summary_has_a_row_for_every_variant_of_every_task(ran: tuple[Path, RunSummary]) -> None:
    summary = summarise(tiny_study(), records(ran[0]))
    for name in TASKS:
        table = next(table for table in summary.tables if table.tasks == (name,))
        assert [row.variant for row in table.rows] == ["QKV", "I-K=V"]
        assert all(row.mean is not None for row in table.rows)
