"""The interface between the training loop and the processes that train one network together."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qkvary.checkpoints.training_state import (
    TrainingState,
    load_training_state,
    save_training_state,
    state_sha256,
)
from qkvary.storage.jsonvalues import JsonValue
from qkvary.training.config import Precision
from qkvary.training.optimizers import optimizer_tensors, restore_optimizer


class Distribution(Protocol):
    """The processes that train one network, seen from one of them."""

    @property
    def rank(self) -> int:
        """Rank of this process; rank 0 writes files."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def wrap(self, model: nn.Module, precision: Precision) -> nn.Module:
        """Wrap a network that is on its device; return the module that computes the loss."""
        ...

    def accumulate(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Return a context for one micro-batch; gradients are synchronized after the last one."""
        ...

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over all processes; collective."""
        ...

    def run_on_first(self, work: Callable[[], JsonValue]) -> Any:
        """Call ``work`` on rank 0 and return its result on every rank; collective.

        Raises:
            QkvaryError: the error of rank 0, on every rank.
        """
        ...

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the total norm of the gradients, over all processes."""
        ...

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
        """Write a checkpoint, then remove all but the newest ``keep``; collective.

        Raises:
            ResourceError: if the disk is full, broken or not writable.
        """
        ...

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

        Keeps this checkpoint and older ones, ``keep`` in total.

        Returns:
            The ``about`` of the checkpoint, or None if there is no checkpoint.

        Raises:
            DamagedError: if there are checkpoints and all of them are damaged.
        """
        ...

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Return one digest of all weights and the optimizer state; collective."""
        ...

    def gather_network(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        """Return the unsharded network on rank 0 and ``model`` itself on other ranks; collective.

        Args:
            model: The network that was wrapped.
            build: Builds a new network to hold the gathered weights.
        """
        ...


class SingleProcess:
    """Training in one process."""

    rank = 0
    size = 1

    def wrap(self, model: nn.Module, precision: Precision) -> nn.Module:  # noqa: ARG002
        """Return the network unchanged."""
        return model

    def accumulate(self, wrapped: nn.Module, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return an empty context."""
        return nullcontext()

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        """Return the numbers unchanged."""
        return list(values)

    def run_on_first(self, work: Callable[[], JsonValue]) -> Any:
        """Call ``work``."""
        return work()

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the total norm of the gradients."""
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
        """Write a checkpoint."""
        state = TrainingState(
            step=step,
            weights=model.state_dict(),
            optimizer=optimizer_tensors(optimizer),
            about=about,
        )
        save_training_state(directory, state, keep=keep)

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
        """Load the newest valid checkpoint."""
        stored = load_training_state(directory, accept=accept, report=report, keep=keep)
        if stored is None:
            return None
        model.load_state_dict(stored.weights)
        restore_optimizer(optimizer, stored.optimizer)
        return stored.about

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """Return one digest of all weights and the optimizer state."""
        return state_sha256(model.state_dict(), optimizer_tensors(optimizer))

    def gather_network(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:  # noqa: ARG002
        """Return the network unchanged."""
        return model
