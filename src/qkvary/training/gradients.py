"""The gradient of one step: its batch in parts, over the processes that share it.

The gradient is that of the mean over all targets of the step that count, however the batch is cut:
each part's mean is weighted with its share of those targets. Knows no optimizer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from qkvary.storage.errors import UsageError
from qkvary.tasks.contract import Batch, Task
from qkvary.training.config import RunConfig
from qkvary.training.distribution import Distribution


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of the global generator for one step of a run in one process."""
    purpose = f"qkvary step {seed} {step}" + (f" rank {rank}" if rank else "")
    digest = hashlib.sha256(purpose.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Gradients:
    """Finds the gradient of each step."""

    def __init__(
        self, run: RunConfig, task: Task, placed: nn.Module, distribution: Distribution
    ) -> None:
        """Cut the batch into parts.

        Args:
            run: The run.
            task: Gives batches and their loss.
            placed: What the loss is asked of.
            distribution: The processes that share a batch.

        Raises:
            UsageError: if the batch cannot be shared evenly.
        """
        self.run, self.task, self.placed = run, task, placed
        self.distribution = distribution
        whole, size = run.training.batch_size, distribution.size
        if whole % size:
            raise UsageError(
                f"expected a batch size that {size} processes share evenly, got {whole}"
            )
        self.share = whole // size
        self.part = min(run.training.execution.micro_batch_size or self.share, self.share)

    def find(self, step: int) -> float:
        """Leave the gradient of a step in the parameters, and return its loss."""
        distribution = self.distribution
        _seed_everything(step_seed(self.run.seed, step, distribution.rank), self.run.device)
        batches = list(self._parts(step))
        counts = [batch.counted for batch in batches]
        (total,) = distribution.add([float(sum(counts))])
        loss = 0.0
        for number, (batch, count) in enumerate(zip(batches, counts, strict=True), start=1):
            share = count / total if total else 0.0
            with distribution.adding_up(self.placed, last=number == len(batches)):
                with self.precision():
                    mean = self.task.loss(self.placed, batch.to(self.run.device))
                # Processes average their gradients; what is wanted is the sum.
                (mean * (share * distribution.size)).backward()
            loss += mean.item() * share
        return distribution.add([loss])[0]

    def precision(self) -> AbstractContextManager[object]:
        """Around everything that runs the network."""
        if self.run.training.execution.precision == "full":
            return nullcontext()
        return torch.autocast(torch.device(self.run.device).type, torch.bfloat16)

    def _parts(self, step: int) -> Iterator[Batch]:
        training, first = self.run.training, self.distribution.rank * self.share
        for start in range(first, first + self.share, self.part):
            rows = slice(start, min(start + self.part, first + self.share))
            yield self.task.batch(step, training.batch_size, self.run.seed, rows)


def _seed_everything(seed: int, device: str) -> None:
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
