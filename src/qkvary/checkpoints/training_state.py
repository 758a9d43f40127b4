"""Weights and optimizer state of a run in the middle of training, as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.rotation import Stored, load_newest, save_stored

_WEIGHTS = "weights.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Everything that a run needs to go on as if it had never stopped."""

    step: int
    """Steps made."""
    weights: Mapping[str, Tensor]
    """Parameters and buffers by name."""
    optimizer: Mapping[str, Tensor]
    """State of the optimizer by name."""
    about: Mapping[str, JsonValue]
    """Everything that is not a tensor."""


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Clones, because safetensors refuses tensors that share memory (a tied head).
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def state_sha256(weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> str:
    """Return one digest of all weights and of the optimizer's state, bit for bit."""
    digest = hashlib.sha256()
    for tensors in (weights, optimizer):
        digest.update(to_safetensors(_plain(tensors)))
    return digest.hexdigest()


def save_training_state(directory: Path, state: TrainingState) -> None:
    """Write ``state`` durably and keep the one before it.

    Raises:
        ResourceError: if the disk is full, broken or not writable; the states before stay.
    """
    files = {
        _WEIGHTS: to_safetensors(_plain(state.weights)),
        _OPTIMIZER: to_safetensors(_plain(state.optimizer)),
    }
    save_stored(directory, Stored(step=state.step, files=files, about=state.about))


def load_training_state(
    directory: Path,
    *,
    accept: Callable[[Mapping[str, JsonValue]], None],
    report: Callable[[str], None],
) -> TrainingState | None:
    """Return the newest sound state, or None where there is none at all.

    Args:
        directory: Where the states are.
        accept: Given what is not a tensor; raises ``DamagedError`` if the state is of no use.
        report: Told, in a sentence, of each damaged state that was passed over.

    Raises:
        DamagedError: if there are states and all of them are damaged.
    """
    tensors: dict[str, Mapping[str, Tensor]] = {}

    def check(stored: Stored) -> None:
        accept(stored.about)
        for name in (_WEIGHTS, _OPTIMIZER):
            try:
                tensors[name] = from_safetensors(stored.files[name])
            except (KeyError, SafetensorError) as error:
                raise DamagedError(f"{name} of step {stored.step} is unusable: {error}") from None

    stored = load_newest(directory, accept=check, report=report)
    if stored is None:
        return None
    return TrainingState(
        step=stored.step,
        weights=tensors[_WEIGHTS],
        optimizer=tensors[_OPTIMIZER],
        about=stored.about,
    )
