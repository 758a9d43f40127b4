"""The gradient of one step: accumulated over micro-batches and averaged over processes.

It is the gradient of the mean over all counted targets of the step, however the batch is split:
each micro-batch is weighted by its share of those targets. Knows no optimizer.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from qkvary.storage.errors import UsageError
from qkvary.tasks.contract import Task
from qkvary.training.config import RunConfig
from qkvary.training.distribution import Distribution


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of the global generator for one step on one rank."""
    purpose = f"qkvary step {seed} {step}" + (f" rank {rank}" if rank else "")
    digest = hashlib.sha256(purpose.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Gradients:
    """Computes the gradient of each step."""

    def __init__(
        self, run: RunConfig, task: Task, wrapped: nn.Module, distribution: Distribution
    ) -> None:
        self.run, self.task, self.wrapped = run, task, wrapped
        self.distribution = distribution
        whole, size = run.training.batch_size, distribution.size
        if whole % size:
            raise UsageError(
                f"expected a batch size divisible by the {size} processes, got {whole}"
            )
        own = whole // size
        micro = min(run.training.execution.micro_batch_size or own, own)
        first, last = distribution.rank * own, (distribution.rank + 1) * own
        self.rows = [slice(row, min(row + micro, last)) for row in range(first, last, micro)]
        """The rows of each micro-batch of this process."""

    def find(self, step: int, stop: Callable[[float], bool] = lambda _done: False) -> float | None:
        """Accumulate the gradient of a step in the parameters and return the loss.

        A process that trains alone calls ``stop`` between micro-batches with the share of them that
        is done. If it returns True, the step is given up: its gradient is incomplete, and the
        result is None.
        """
        distribution, training = self.distribution, self.run.training
        seed = step_seed(self.run.seed, step, distribution.rank)
        if self.run.device == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        batches = [
            self.task.batch(step, training.batch_size, self.run.seed, rows) for rows in self.rows
        ]
        counts = [batch.counted for batch in batches]
        (total,) = distribution.all_reduce([float(sum(counts))])
        weights = [count / total if total else 0.0 for count in counts]
        means: list[Tensor] = []
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True), start=1):
            if number > 1 and distribution.size == 1 and stop((number - 1) / len(batches)):
                return None
            is_last = number == len(batches)
            with nullcontext() if is_last else distribution.no_sync(self.wrapped):
                with self.precision():
                    mean = self.task.loss(self.wrapped, batch.to(self.run.device))
                # Processes average their gradients, but the weighted sum is needed.
                (mean * (weight * distribution.size)).backward()
            means.append(mean.detach())
        # Read at the end, so that a GPU computes the micro-batches without waiting in between.
        loss = 0.0
        for mean, weight in zip(torch.stack(means).tolist(), weights, strict=True):
            loss += mean * weight
        return distribution.all_reduce([loss])[0]

    def precision(self) -> AbstractContextManager[object]:
        """Return the autocast context for every call of the network."""
        if self.run.training.execution.precision == "full":
            return nullcontext()
        return torch.autocast(torch.device(self.run.device).type, torch.bfloat16)
