import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from qkvary.arch.models import as_model
from qkvary.costs.macs import forward_macs
from qkvary.studies.running import timing
from qkvary.studies.study import Study
from qkvary.tasks.catalog import load_task
from qkvary.tasks.contract import Batch
from qkvary.training.config import ExecutionConfig, RunConfig
from tests.studies.toy_study import toy_study


def study_of_widths(widths: range) -> Study:
    study = toy_study([1, 2], steps=7)
    first = study.settings[0]
    settings: list[object] = []
    for width in widths:
        block = dataclasses.replace(first.network.block, d_ff=width)
        network = dataclasses.replace(first.network, block=block)
        settings.append(dataclasses.replace(first, name=f"wide {width}", network=network))
    return dataclasses.replace(study, settings=tuple(settings))  # type: ignore[arg-type]


def test_time_is_interpolated_by_macs(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[RunConfig] = []

    def time_step(run: RunConfig) -> float:
        timed.append(run)
        macs = forward_macs(as_model(run.network), tokens=run.sequence_length, pairs="square").total
        return 0.5 + 1e-3 * macs * run.training.batch_size

    monkeypatch.setattr(timing, "time_step", time_step)
    cells = study_of_widths(range(5, 16)).cells()
    expected = sum(7 * time_step(cell.run) for cell in cells)
    timed.clear()
    assert timing.estimate_seconds(cells) == pytest.approx(expected)
    assert len(timed) == timing.MOST_TIMED
    one = cells[:1]
    assert timing.estimate_seconds(one) == pytest.approx(7 * time_step(one[0].run))


def test_a_step_takes_time() -> None:
    assert 0 < timing.time_step(toy_study([1]).cells()[0].run) < 60


def test_a_large_step_is_timed_with_fewer_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    run = toy_study([1]).cells()[0].run
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, batch_size=12))
    macs = forward_macs(as_model(run.network), tokens=run.sequence_length, pairs="square").total
    monkeypatch.setattr(timing, "MOST_TIMED_MACS", 3 * macs + 1)
    monkeypatch.setattr(timing, "perf_counter", itertools.count().__next__)
    task = load_task(run.task)
    seen: list[int] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(len(batch.inputs))
        return type(task).loss(task, model, batch)

    monkeypatch.setattr(task, "loss", loss)
    monkeypatch.setattr(timing, "load_task", lambda _: task)
    # A second by this clock for a quarter of the examples.
    assert timing.time_step(run) == 4
    assert set(seen) == {3}


def test_a_timed_step_has_the_micro_batches_and_precision_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = toy_study([1]).cells()[0].run
    execution = ExecutionConfig(micro_batch_size=2, precision="bf16")
    training = dataclasses.replace(run.training, batch_size=5, execution=execution)
    run = dataclasses.replace(run, training=training)
    task = load_task(run.task)
    seen: list[tuple[int, bool]] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        seen.append((len(batch.inputs), torch.is_autocast_enabled("cpu")))
        return type(task).loss(task, model, batch)

    monkeypatch.setattr(task, "loss", loss)
    monkeypatch.setattr(timing, "load_task", lambda _: task)
    timing.time_step(run)
    assert seen == [(2, True), (2, True), (1, True)] * (timing.TIMED_STEPS + 1)
