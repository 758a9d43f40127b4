"""Weights and optimizer state of a run during training, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qkvary.checkpoints.sharded_state import Reader, file_contents
from qkvary.checkpoints.tensor_files import tensor_bytes
from qkvary.storage.durable import clean_leftovers
from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import JsonValue, encode
from qkvary.storage.manifest import (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Everything needed to resume a run exactly."""

    step: int
    """Number of completed steps."""
    weights: Mapping[str, Tensor]
    """Parameters and buffers, by name."""
    optimizer: Mapping[str, Tensor]
    about: Mapping[str, JsonValue]
    """All other state."""


RunOnAll = Callable[[Callable[[], JsonValue]], list[Any]]
"""Runs a function in every process and returns all results, or raises the first error."""


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


def load_training_state(
    directory: Path,
    *,
    accept: Callable[[Mapping[str, JsonValue]], None],
    report: Callable[[str], None],
    keep: int = DEFAULT_KEEP,
    reader: Reader | None = None,
    run_on_all: RunOnAll = lambda work: [work()],
) -> TrainingState | None:
    """Return the newest state that is valid in every process, or ``None`` if no state exists.

    ``accept`` gets what is not a tensor and rejects it with ``DamagedError``; ``report`` gets a
    sentence for each damaged state that was skipped.
    """
    reader = reader or Reader()

    def begin() -> JsonValue:
        if reader.number:
            return None
        clean_leftovers(directory)
        return stored_steps(directory)

    def read(step: int) -> TrainingState:
        found: list[TrainingState] = []

        def work() -> JsonValue:
            found.append(read_state(directory, step, accept=accept, reader=reader))
            return encode(found[0].about)

        if len(set(run_on_all(work))) > 1:
            raise DamagedError(
                f"the processes read different checkpoints of step {step} in {directory}: "
                "it must be on a disk that all processes share"
            )
        return found[0]

    state = find_newest(directory, run_on_all(begin)[0], read=read, report=report)
    if state is not None:
        run_on_all(lambda: None if reader.number else keep_up_to(directory, state.step, keep))
    return state


def read_state(
    directory: Path,
    step: int,
    *,
    accept: Callable[[Mapping[str, JsonValue]], None],
    reader: Reader | None = None,
) -> TrainingState:
    """Return the state of one step, or the part that a reader requests."""
    manifest = step_manifest(directory, step)
    accept(manifest.about)
    tensors = (reader or Reader()).read(step_folder(directory, step), manifest)
    return TrainingState(
        step=step,
        weights=tensors["weights"],
        optimizer=tensors["optimizer"],
        about=manifest.about,
    )
