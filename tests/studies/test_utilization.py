import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qkvary.studies.utilization import product_flops_per_second, training_flops_per_second
from qkvary.tasks.catalog import load_task
from qkvary.training.config import ExecutionConfig, OptimizerConfig, RunConfig, TrainingConfig
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
    monkeypatch.setattr("qkvary.studies.utilization.SIDE_ON_CPU", 64)
    training = dataclasses.replace(
        tiny_run().training,
        execution=ExecutionConfig(precision=precision),  # type: ignore[arg-type]
    )
    before = torch.get_num_threads()
    rate = product_flops_per_second(dataclasses.replace(tiny_run(), training=training))
    assert 1e6 < rate < 1e15
    assert torch.get_num_threads() == before
