"""The messages between the runner and its workers: lines of JSON. Torch-free.

The runner sends one ``Job`` and keeps the pipe open; a worker stops when the pipe closes, also when
its runner was killed. A worker sends ``WorkerMessage``.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.arch.own import import_code
from qkvary.storage.checkpoint_folders import DEFAULT_KEEP
from qkvary.storage.jsonvalues import decode, encode
from qkvary.studies.study import Cell
from qkvary.training.config import RunConfig
from qkvary.training.trackers import TrackerName

STOPPING = "stopping after a checkpoint; interrupt again to stop at once"
"""The message when a training or a study is interrupted."""
MessageKind = Literal[
    "ready", "started", "progress", "ended", "elsewhere", "given_up", "waiting", "note", "fatal"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The runs for a worker."""

    store: Path
    """The folder of all runs."""
    cells: tuple[Cell, ...]
    """The runs, in the order of their execution."""
    checkpoint_seconds: float
    """Seconds between two checkpoints of a run."""
    keep: int = DEFAULT_KEEP
    """Number of newest checkpoints to keep per run."""
    tracker: TrackerName | None = None
    """The tracker that gets a copy of the logs."""
    project: str = ""
    """The name of the study there."""
    again: Mapping[str, int] = field(default_factory=dict[str, int])
    """Versions of the records of finished runs to be made again, by run key."""

    def to_line(self) -> bytes:
        """Return the job as one line."""
        cells = [{**_fields(cell), "run": to_dict(cell.run)} for cell in self.cells]
        fields = {**_fields(self), "store": str(self.store), "cells": cells}
        fields["again"] = dict(self.again)
        fields["code"] = [*dict.fromkeys(one for cell in self.cells for one in cell.run.code)]
        return encode(fields).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Job":
        """Return the job that a line encodes."""
        fields = cast("dict[str, Any]", decode(line))
        fields["store"] = Path(fields["store"])
        import_code(fields.pop("code"))
        fields["cells"] = tuple(_cell(cell) for cell in fields["cells"])
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMessage:
    """A message from a worker."""

    kind: MessageKind
    """``elsewhere``: another runner has completed the run; ``given_up``: it crashed too many
    processes, and the runner should record that; ``waiting``: other processes hold all remaining
    runs; ``fatal``: no run can continue, for example because the disk is full."""
    cell: int = -1
    """Number of the run in the job."""
    text: str = ""
    """Text to display."""
    status: str = ""
    """Status of the ended run."""
    step: int = 0
    """Completed steps."""
    steps: int = 0
    """Steps of the whole run."""
    part: float = 0.0
    """Share of the next step's micro-batches that is done."""
    loss: float | None = None
    """Latest training loss."""
    seconds: float = 0.0
    """Seconds that the worker spent on the ended run."""
    code: int = 0
    """Exit code of a fatal error."""

    def to_line(self) -> bytes:
        """Return the message as one line."""
        return encode(_fields(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "WorkerMessage":
        """Return the message that a line encodes.

        Raises:
            ValueError: if the line is not a message.
        """
        try:
            return cls(**cast("dict[str, Any]", decode(line)))
        except TypeError as error:
            raise ValueError(f"not a worker's message: {error}") from None


def _cell(fields: dict[str, Any]) -> Cell:
    run = from_dict(RunConfig, fields.pop("run"))
    return Cell(run=run, kept_networks=tuple(fields.pop("kept_networks")), **fields)


def _fields(value: Any) -> dict[str, Any]:
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
