"""The gradient of one step: accumulated over micro-batches and averaged over processes.

It is the gradient of the mean over all counted targets of the step, however the batch is split:
each micro-batch is weighted by its share of those targets. Knows no optimizer.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from qkvary.storage.errors import UsageError
from qkvary.tasks.contract import Batch, Task
from qkvary.training.config import RunConfig
from qkvary.training.distribution import Distribution


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of the global generator for one step on one rank."""
    purpose = f"qkvary step {seed} {step}" + (f" rank {rank}" if rank else "")
    digest = hashlib.sha256(purpose.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def never(_done: float) -> bool:
    """Return False: do not give up the step."""
    return False


class Gradients:
    """Computes the gradient of each step."""

    def __init__(
        self, run: RunConfig, task: Task, wrapped: nn.Module, distribution: Distribution
    ) -> None:
        """Choose the micro-batch size.

        Args:
            run: The run.
            task: Supplies batches and their loss.
            wrapped: The module that computes the loss.
            distribution: The processes that train together.

        Raises:
            UsageError: if the batch size is not divisible by the number of processes.
        """
        self.run, self.task, self.wrapped = run, task, wrapped
        self.distribution = distribution
        whole, size = run.training.batch_size, distribution.size
        if whole % size:
            raise UsageError(
                f"expected a batch size divisible by the {size} processes, got {whole}"
            )
        self.rows_per_process = whole // size
        self.micro_batch_size = min(
            run.training.execution.micro_batch_size or self.rows_per_process, self.rows_per_process
        )

    def find(self, step: int, stop: Callable[[float], bool] = never) -> float | None:
        """Accumulate the gradient of a step in the parameters and return the loss.

        Args:
            step: The step.
            stop: Called between micro-batches with the share of them that is done; if it returns
                True, the step is given up. Not called where other processes would wait for this
                one.

        Returns:
            ``None`` for a step that was given up; its gradient is incomplete.
        """
        distribution = self.distribution
        _seed_everything(step_seed(self.run.seed, step, distribution.rank), self.run.device)
        batches = list(self._micro_batches(step))
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

    def _micro_batches(self, step: int) -> Iterator[Batch]:
        training, first = self.run.training, self.distribution.rank * self.rows_per_process
        for start in range(first, first + self.rows_per_process, self.micro_batch_size):
            rows = slice(start, min(start + self.micro_batch_size, first + self.rows_per_process))
            yield self.task.batch(step, training.batch_size, self.run.seed, rows)


def _seed_everything(seed: int, device: str) -> None:
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
