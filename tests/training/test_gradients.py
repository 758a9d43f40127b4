"""However a batch is cut, its gradient is that of the mean over all targets that count."""

import dataclasses
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.tasks.contract import ALL_ROWS, IGNORE_INDEX, Batch
from qkvary.training.config import ExecutionConfig, RunConfig
from qkvary.training.distribution import Distribution, Gradients
from tests.training.toy import ToyTask, toy_run

BATCH = 16


class UnevenTask(ToyTask):
    """Rows of which some targets do not count: in row r the first r, so that all of row 5 are."""

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        whole = super().batch(step, batch_size, seed)
        draw = random.Random(step)
        targets = whole.targets.clone()
        for row in range(batch_size):
            targets[row, : draw.randrange(6)] = IGNORE_INDEX
        return Batch(whole.inputs[rows], targets[rows])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if not batch.counted:
            return model(batch.inputs).sum() * 0.0
        logits = model(batch.inputs).flatten(0, 1)
        return F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE_INDEX)


def uneven_run(micro: int | None) -> RunConfig:
    run = toy_run(execution=ExecutionConfig(micro_batch_size=micro))
    training = dataclasses.replace(run.training, batch_size=BATCH)
    return dataclasses.replace(run, training=training, dtype="float64")


@pytest.mark.parametrize("micro", [None, 7, 4, 1, 1000])
def test_the_parts_make_the_whole(micro: int | None) -> None:
    task = UnevenTask()
    models = [task.build(toy_run().network, 3).double().train() for _ in range(2)]
    for model in models:
        model.dropout.p = 0.0  # type: ignore[union-attr, assignment]
    batch = task.batch(5, BATCH, 3)
    logits = models[0](batch.inputs)
    kept = batch.targets != IGNORE_INDEX
    expected = F.cross_entropy(logits[kept], batch.targets[kept])
    expected.backward()
    loss = Gradients(uneven_run(micro), task, models[1], Distribution()).accumulate(5)
    assert loss == pytest.approx(expected.item(), rel=1e-14)
    for wanted, found in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-12, atol=1e-15)


def test_a_step_in_which_nothing_counts_changes_nothing() -> None:
    task = UnevenTask()
    task.batch = lambda *_arguments: Batch(  # type: ignore[method-assign]
        torch.zeros(16, 5, dtype=torch.long), torch.full((16, 5), IGNORE_INDEX)
    )
    model = task.build(toy_run().network, 3).double().train()
    assert Gradients(uneven_run(None), task, model, Distribution()).accumulate(0) == 0.0
    assert all(not p.grad.any() for p in model.parameters() if p.grad is not None)


def test_autocast_is_around_the_network() -> None:
    seen: list[torch.dtype] = []

    class Watching(ToyTask):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            logits = model(batch.inputs)
            seen.append(logits.dtype)
            return F.cross_entropy(logits.float().flatten(0, 1), batch.targets.flatten())

    for precision in ("bf16", "full"):
        task, run = Watching(), toy_run(execution=ExecutionConfig(precision=precision))
        model = task.build(run.network, 3).train()
        Gradients(run, task, model, Distribution()).accumulate(0)
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert seen == [torch.bfloat16, torch.float32]
