"""Computes one process's part of a training run, together with the other processes.

The gradient of a step is the gradient of the mean loss over all counted targets. It does not depend
on how the batch is split, because each micro-batch is weighted by its share of these targets.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkvary.arch.parts import returned
from qkvary.checkpoints.sharded_state import Reader
from qkvary.checkpoints.training_state import (
    TrainingState,
    read_state,
    save_training_state,
    state_sha256,
)
from qkvary.storage.durable import clean_leftovers
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import find_newest, quarantine_newer, stored_steps
from qkvary.tasks.contract import Batch, ProcessGroup, Task
from qkvary.training.config import Precision, RunConfig
from qkvary.training.optimizers import optimizer_tensors, restore_optimizer
from qkvary.training.progress import ignore


class Distribution(ProcessGroup):
    """The processes that train one network. In this base class, there is only one process.

    Rank 0 writes files.
    """

    def wrap(self, model: nn.Module, _: Precision, /) -> nn.Module:
        """Wrap a network that has already been moved to its device.

        Returns the module that computes the loss.
        """
        return model

    def no_sync(self, _: nn.Module, /) -> AbstractContextManager[None]:
        """Return a context for a micro-batch whose gradients are not synchronized."""
        return nullcontext()

    def run_on_first(self, work: Callable[[], JsonValue]) -> Any:
        """Call ``work`` on rank 0 and return its result, or raise its error, on every rank."""
        return work()

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the total norm of the gradients, over all processes."""
        return torch.nn.utils.get_total_norm(gradients, foreach=True)

    def save(
        self,
        directory: Path,
        *,
        step: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        about: Mapping[str, JsonValue],
        keep: int,
    ) -> None:
        """Write a checkpoint, and keep only the newest ``keep`` ones. All ranks must call this."""
        state = TrainingState(
            step=step,
            weights=model.state_dict(),
            optimizer=optimizer_tensors(optimizer),
            about=about,
        )
        self.run_on_first(lambda: save_training_state(directory, state, keep=keep))

    def load(
        self,
        directory: Path,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        key: str,
        report: Callable[[str], None],
    ) -> Mapping[str, JsonValue] | None:
        """Load the newest checkpoint that is valid in every process. All ranks must call this.

        ``key`` is the key of the run. Damaged checkpoints that are newer than the loaded one are
        quarantined, and ``report`` is called with a sentence about each of them. Returns the part
        of the loaded state that is not stored in tensors, or None if there is no checkpoint.

        Raises:
            UsageError: if the checkpoints belong to another run.
            NoValidCheckpointError: if all checkpoints are damaged.
        """

        def list_steps() -> JsonValue:
            clean_leftovers(directory)
            return stored_steps(directory)

        reader = self.reader(model, optimizer)
        stored = find_newest(
            directory,
            self.run_on_first(list_steps),
            read=lambda step: self.read(directory, step, key=key, reader=reader),
            report=report if self.is_first else ignore,
        )
        if stored is None:
            return None
        self.run_on_first(lambda: quarantine_newer(directory, stored.step))
        self.restore(stored, model, optimizer)
        return stored.about

    def reader(self, _: nn.Module, __: torch.optim.Optimizer, /) -> Reader:
        """Return a reader for this rank's part of a checkpoint."""
        return Reader(number=self.rank, count=self.size)

    def read(
        self,
        directory: Path,
        step: int,
        *,
        key: str,
        reader: Reader,
    ) -> TrainingState:
        """Read this rank's part of a checkpoint. The checkpoint must be valid on all ranks."""
        return read_state(directory, step, key=key, reader=reader)

    def restore(
        self, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Restore a network and its optimizer from the state that was read."""
        model.load_state_dict(state.weights)
        restore_optimizer(optimizer, state.optimizer)

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Return the digest of all weights and the optimizer state. All ranks must call this."""
        return state_sha256(model.state_dict(), optimizer_tensors(optimizer))

    def gather_network(self, model: nn.Module, _: Callable[[], nn.Module], /) -> nn.Module:
        """Return the unsharded network on rank 0, ``model`` on others. All ranks must call this.

        The arguments are the network that was wrapped, and a function that builds a new network for
        the gathered weights.
        """
        return model


SINGLE_PROCESS = Distribution()


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
        """The rows of the batch in each micro-batch of this process."""

    def accumulate(self, step: int, between: Callable[[float], None] = ignore) -> float:
        """Compute the loss of a training step and return it.

        The gradient is accumulated in the ``grad`` of the parameters. After each micro-batch but
        the last, ``between`` is called with the share of micro-batches done so far. If ``between``
        raises an error, the step is abandoned.
        """
        distribution = self.distribution
        seed = step_seed(self.run.seed, step, distribution.rank)
        if self.run.device == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        batches = [self._batch(step, rows) for rows in self.rows]
        counts = [batch.counted for batch in batches]
        (total,) = distribution.all_reduce([float(sum(counts))])
        weights = [count / total if total else 0.0 for count in counts]
        means: list[Tensor] = []
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True), start=1):
            if number > 1:
                between((number - 1) / len(batches))
            is_last = number == len(batches)
            with nullcontext() if is_last else distribution.no_sync(self.wrapped):
                with self.precision():
                    mean = self.task.loss(self.wrapped, batch.to(self.run.device))
                returned(self.task, "loss", mean, Tensor)
                # Processes average their gradients, but the weighted sum is needed.
                (mean * (weight * distribution.size)).backward()
            means.append(mean.detach())
        # Read at the end, so that a GPU computes the micro-batches without waiting in between.
        loss = 0.0
        for mean, weight in zip(torch.stack(means).tolist(), weights, strict=True):
            loss += mean * weight
        return distribution.all_reduce([loss])[0]

    def _batch(self, step: int, rows: slice) -> Batch:
        """Return some rows of a step's batch. Check that the task returned all of these rows."""
        size, task = self.run.training.batch_size, self.task
        batch = returned(task, "batch", task.batch(step, size, self.run.seed, rows), Batch)
        for name in ("inputs", "targets"):
            returned(batch, name, getattr(batch, name), Tensor)
        expected, found = rows.stop - rows.start, (len(batch.inputs), len(batch.targets))
        if found != (expected, expected):
            raise ValueError(
                f"expected {expected:,} rows from {type(task).__name__}.batch, got inputs of "
                f"{found[0]:,} rows and targets of {found[1]:,} rows"
            )
        return batch

    def precision(self) -> AbstractContextManager[object]:
        """Return the autocast context for every call of the network."""
        if self.run.training.execution.precision == "full":
            return nullcontext()
        return torch.autocast(torch.device(self.run.device).type, torch.bfloat16)
