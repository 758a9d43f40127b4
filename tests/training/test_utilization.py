"""Device utilization of training, and that measuring it changes nothing."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkvary.studies.records import Record, from_json, to_json
from qkvary.studies.running.cells import execute_cell
from qkvary.studies.running.store import Store
from qkvary.studies.running.training import train_cell
from qkvary.studies.study import Cell
from qkvary.tasks.catalog import load_task
from qkvary.training import utilization
from qkvary.training.config import ExecutionConfig, OptimizerConfig, RunConfig, TrainingConfig
from qkvary.training.utilization import (
    measure_utilization,
    product_flops_per_second,
    training_flops_per_second,
)
from tests.tasks.tiny_networks import tiny_network, tiny_task


def tiny_run() -> RunConfig:
    return RunConfig(
        task=tiny_task("language"),
        network=tiny_network("language"),
        training=TrainingConfig(
            steps=1, batch_size=3, evaluate_every=1, optimizer=OptimizerConfig(learning_rate=0.1)
        ),
        seed=0,
    )


def test_the_arithmetic_is_what_torch_counts() -> None:
    run = tiny_run()
    task = load_task(run.task)
    model, batch = task.build(run.network, 0), task.batch(0, 3, 0)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task.loss(model, batch).backward()
    counted = training_flops_per_second(run, steps_per_second=1.0)
    # Torch counts pairs that the mask hides.
    hidden = 3 * 2 * 2 * 2 * 3 * 24 * (49 - 28)
    assert counted + hidden == counter.get_total_flops()


@pytest.mark.parametrize("precision", ["full", "bf16"])
def test_a_product_is_timed_as_a_run_computes_it(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkvary.training.utilization.SIDE_ON_CPU", 64)
    training = dataclasses.replace(
        tiny_run().training,
        execution=ExecutionConfig(precision=precision),  # type: ignore[arg-type]
    )
    before = torch.get_num_threads()
    rate = product_flops_per_second(dataclasses.replace(tiny_run(), training=training))
    assert 1e6 < rate < 1e15
    assert torch.get_num_threads() == before


def made(run: RunConfig, folder: Path) -> Record:
    cell = Cell(setting="one", variant="QKV", run=run)
    execute_cell(Store(folder), cell, train_cell)
    record = Store(folder).record(cell.run_key)
    assert record is not None
    return record


def test_a_language_model_is_measured_by_the_process_that_trained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utilization, "SIDE_ON_CPU", 64)
    record = made(tiny_run(), tmp_path / "measured")
    share, whole = (record.timing[key] for key in ("utilization", "product_flops_per_second"))
    flops = training_flops_per_second(tiny_run(), record.timing["steps_per_second"])
    assert share * whole == pytest.approx(flops)
    assert from_json(to_json(record), where="here").timing == record.timing

    def fail(_run: RunConfig) -> float:
        raise torch.OutOfMemoryError("no room for it")

    monkeypatch.setattr(utilization, "product_flops_per_second", fail)
    without = made(tiny_run(), tmp_path / "without")
    assert {"utilization", "product_flops_per_second"} <= record.timing.keys()
    assert not {"utilization", "product_flops_per_second"} & without.timing.keys()
    for name in ("run_key", "status", "metrics", "state_sha256"):
        assert getattr(record, name) == getattr(without, name)


def test_what_made_no_step_or_is_no_language_model_is_not_measured() -> None:
    assert measure_utilization(tiny_run(), 0.0) == {}
    encoder = dataclasses.replace(
        tiny_run(), task=tiny_task("reverse"), network=tiny_network("reverse")
    )
    assert measure_utilization(encoder, 10.0) == {}
