"""Weights and optimizer state of a run in the middle of training, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from qkvary.checkpoints.sharded_state import Reader, whole_contents
from qkvary.checkpoints.tensor_files import tensor_bytes
from qkvary.storage.checkpoint_folders import (
    DEFAULT_KEEP,
    checkpoint_directory,
    find_newest,
    keep_newest,
    keep_up_to,
    step_folder,
    step_manifest,
    stored_steps,
    write_checked,
    write_manifest,
)
from qkvary.storage.durable import clean_leftovers
from qkvary.storage.jsonvalues import JsonValue


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


def as_it_is(tensor: Tensor) -> Tensor:
    """Return a tensor that is whole already."""
    return tensor


def state_sha256(
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    *,
    whole: Callable[[Tensor], Tensor] = as_it_is,
) -> str:
    """Return one digest of all weights and of the optimizer's state, bit for bit.

    Args:
        weights: Tensors by name.
        optimizer: Tensors by name.
        whole: Brings a tensor together that processes share; asked in the same order everywhere.
    """
    digest = hashlib.sha256()
    for kind, tensors in (("weights", weights), ("optimizer", optimizer)):
        for name in sorted(tensors):
            tensor = whole(tensors[name]).detach().cpu().contiguous()
            title = [kind, name, str(tensor.dtype), list(tensor.shape)]
            digest.update(json.dumps(title).encode())
            digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def save_training_state(directory: Path, state: TrainingState, *, keep: int = DEFAULT_KEEP) -> None:
    """Write ``state`` durably, then remove all but the newest.

    Args:
        directory: Where the states are.
        state: The new one.
        keep: How many are left, with the new one.

    Raises:
        ResourceError: if the disk is full, broken or not writable; the states before stay.
        DamagedError: if what was read back is not what was written.
    """
    files = whole_contents({"weights": state.weights, "optimizer": state.optimizer})
    size = sum(contents.size for contents in files.values())
    with checkpoint_directory(directory, state.step, size) as folder:
        entries = write_checked(folder, files)
        write_manifest(folder, state.step, entries, state.about)
    keep_newest(directory, keep)


def load_training_state(
    directory: Path,
    *,
    accept: Callable[[Mapping[str, JsonValue]], None],
    report: Callable[[str], None],
    keep: int = DEFAULT_KEEP,
) -> TrainingState | None:
    """Return the newest sound state, whole, or None where there is none at all.

    Args:
        directory: Where the states are.
        accept: Given what is not a tensor; raises ``DamagedError`` if the state is of no use.
        report: Told, in a sentence, of each damaged state that was passed over.
        keep: How many are left, with the one that was found.

    Raises:
        DamagedError: if there are states and all of them are damaged.
    """

    def read(step: int) -> TrainingState:
        return read_state(directory, step, accept=accept)

    clean_leftovers(directory)
    state = find_newest(directory, stored_steps(directory), read=read, report=report)
    if state is not None:
        keep_up_to(directory, state.step, keep)
    return state


def read_state(
    directory: Path,
    step: int,
    *,
    accept: Callable[[Mapping[str, JsonValue]], None],
    reader: Reader | None = None,
) -> TrainingState:
    """Return the state of one step, or what a reader wants of it.

    Args:
        directory: Where the states are.
        step: Which.
        accept: As for ``load_training_state``.
        reader: Who reads; somebody who wants everything by default.

    Raises:
        DamagedError: if it is not exactly what was written, or of no use.
        UnsafeError: if its manifest names a file outside of it.
    """
    manifest = step_manifest(directory, step)
    accept(manifest.about)
    tensors = (reader or Reader()).read(step_folder(directory, step), manifest)
    return TrainingState(
        step=step,
        weights=tensors["weights"],
        optimizer=tensors["optimizer"],
        about=manifest.about,
    )
