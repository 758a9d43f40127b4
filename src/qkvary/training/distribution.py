"""Where the work of one run is done: what a loop asks of the processes that share it.

A loop that runs in one process asks the same things; ``Alone`` answers them.
"""

from __future__ import annotations

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
    """Processes that train one network together, seen from one of them."""

    @property
    def rank(self) -> int:
        """Number of this process, counted from 0; the first one writes."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def place(self, model: nn.Module, precision: Precision) -> nn.Module:
        """Spread a network that is on its device, and return what the loss is asked of."""
        ...

    def adding_up(self, placed: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Around one micro-batch; only behind the last one are gradients exchanged."""
        ...

    def add(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over all processes; a call of all of them."""
        ...

    def first(self, work: Callable[[], JsonValue]) -> Any:
        """Let the first process do something; return its answer to all; a call of all of them.

        Raises:
            QkvaryError: what it raised, in all of them.
        """
        ...

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together, over all processes."""
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
        """Write a checkpoint, then remove all but the newest ``keep``; a call of all processes.

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
        """Put back the newest sound checkpoint, whoever wrote it and with how many processes.

        Of those before it, so many are left that they are ``keep`` together.

        Returns:
            What was noted in it, or None where there is no checkpoint at all.

        Raises:
            DamagedError: if there are checkpoints and all of them are damaged.
        """
        ...

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """One digest of all weights and of the optimizer's state; a call of all processes."""
        ...

    def whole(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:
        """Return the network in one piece; a call of all processes, for the first of them.

        Args:
            model: What was placed. The other processes get it as it is.
            build: Makes such a network anew, where what was placed cannot be brought together.
        """
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def place(self, model: nn.Module, precision: Precision) -> nn.Module:  # noqa: ARG002
        """Leave the network as it is."""
        return model

    def adding_up(self, placed: nn.Module, *, last: bool) -> AbstractContextManager[None]:  # noqa: ARG002
        """Nothing is exchanged."""
        return nullcontext()

    def add(self, values: Sequence[float]) -> list[float]:
        """Return the numbers as they are."""
        return list(values)

    def first(self, work: Callable[[], JsonValue]) -> Any:
        """Do it."""
        return work()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together."""
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
        """Put back the newest sound checkpoint."""
        stored = load_training_state(directory, accept=accept, report=report, keep=keep)
        if stored is None:
            return None
        model.load_state_dict(stored.weights)
        restore_optimizer(optimizer, stored.optimizer)
        return stored.about

    def digest(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
        """One digest of all weights and of the optimizer's state."""
        return state_sha256(model.state_dict(), optimizer_tensors(optimizer))

    def whole(self, model: nn.Module, build: Callable[[], nn.Module]) -> nn.Module:  # noqa: ARG002
        """Return the network, which is whole."""
        return model
