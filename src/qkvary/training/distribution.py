"""The processes that train one network together, as the training loop sees them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qkvary.checkpoints.sharded_state import Reader
from qkvary.checkpoints.training_state import (
    TrainingState,
    load_training_state,
    save_training_state,
    state_sha256,
)
from qkvary.storage.jsonvalues import JsonValue
from qkvary.tasks.contract import ProcessGroup
from qkvary.training.config import Precision
from qkvary.training.optimizers import optimizer_tensors, restore_optimizer


class Distribution(ProcessGroup):
    """The processes that train one network, seen from one of them; here there is one process.

    Rank 0 writes files.
    """

    def wrap(self, model: nn.Module, _: Precision, /) -> nn.Module:
        """Wrap a network that is on its device; return the module that computes the loss."""
        return model

    def no_sync(self, _: nn.Module, /) -> AbstractContextManager[None]:
        """Return a context for a micro-batch whose gradients are not synchronized."""
        return nullcontext()

    def run_on_all(self, work: Callable[[], JsonValue]) -> list[Any]:
        """Call ``work`` on every rank and return all results, or raise the first rank's error."""
        return [work()]

    def run_on_first(self, work: Callable[[], JsonValue]) -> Any:
        """Call ``work`` on rank 0 and return its result, or raise its error, on every rank."""
        return self.run_on_all(lambda: work() if self.rank == 0 else None)[0]

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
        """Write a checkpoint, then remove all but the newest ``keep``; collective."""
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
        accept: Callable[[Mapping[str, JsonValue]], None],
        report: Callable[[str], None],
        keep: int,
    ) -> Mapping[str, JsonValue] | None:
        """Load the newest valid checkpoint, written by any number of processes; collective.

        Keeps this checkpoint and older ones, ``keep`` in total; returns its ``about``, if any.
        """
        stored = load_training_state(
            directory,
            accept=accept,
            report=report if self.rank == 0 else lambda _: None,
            keep=keep,
            reader=self.reader(model, optimizer),
            run_on_all=self.run_on_all,
        )
        if stored is None:
            return None
        self.restore(stored, model, optimizer)
        return stored.about

    def reader(self, _: nn.Module, __: torch.optim.Optimizer, /) -> Reader:
        """Return the reader of what this rank needs of a checkpoint."""
        return Reader(number=self.rank, count=self.size)

    def restore(
        self, state: TrainingState, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Restore a network and its optimizer from the state that was read."""
        model.load_state_dict(state.weights)
        restore_optimizer(optimizer, state.optimizer)

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Return the digest of all weights and the optimizer state of one process; collective."""
        return state_sha256(model.state_dict(), optimizer_tensors(optimizer))

    def gather_network(self, model: nn.Module, _: Callable[[], nn.Module], /) -> nn.Module:
        """Return the unsharded network on rank 0 and ``model`` itself on other ranks; collective.

        The arguments are the network that was wrapped, and a function that builds a new network to
        hold the gathered weights.
        """
        return model


class SingleProcess(Distribution):
    """Training in one process."""
