"""Stores the weights and the optimizer state of a run during training, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from qkvary.checkpoints.sharded_state import Reader, file_contents
from qkvary.checkpoints.tensor_files import tensor_bytes
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import (
    DEFAULT_KEEP,
    checkpoint_directory,
    keep_newest,
    step_folder,
    step_manifest,
    write_checked,
    write_manifest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Everything needed to resume a run exactly."""

    step: int
    weights: Mapping[str, Tensor]
    """Parameters and buffers, by name."""
    optimizer: Mapping[str, Tensor]
    about: Mapping[str, JsonValue]


def state_sha256(
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    *,
    whole: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> str:
    """Return one digest of all weights and the optimizer state."""
    digest = hashlib.sha256()
    for kind, tensors in (("weights", weights), ("optimizer", optimizer)):
        for name in sorted(tensors):
            tensor = whole(tensors[name]).detach().cpu().contiguous()
            title = [kind, name, str(tensor.dtype), list(tensor.shape)]
            digest.update(json.dumps(title).encode())
            digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def save_training_state(directory: Path, state: TrainingState, *, keep: int = DEFAULT_KEEP) -> None:
    """Write ``state`` durably, then remove all but the newest states."""
    files = file_contents({"weights": state.weights, "optimizer": state.optimizer})
    size = sum(contents.size for contents in files.values())
    with checkpoint_directory(directory, state.step, size) as folder:
        entries = write_checked(folder, files)
        write_manifest(folder, state.step, entries, state.about)
    keep_newest(directory, keep)


def read_state(
    directory: Path,
    step: int,
    *,
    key: str,
    reader: Reader | None = None,
) -> TrainingState:
    """Return the state of one step of the run ``key``, or the part that a reader requests."""
    manifest = step_manifest(directory, step)
    if (found := manifest.about.get("run_key")) != key:
        raise UsageError(
            f"{directory.parent} belongs to another run (its key is {found}; the key of this run "
            f"is {key}); choose another folder"
        )
    tensors = (reader or Reader()).read(step_folder(directory, step), manifest)
    return TrainingState(
        step=step,
        weights=tensors["weights"],
        optimizer=tensors["optimizer"],
        about=manifest.about,
    )
