"""What the runner and its workers say to each other: lines of JSON. Torch-free.

The runner sends one ``Job`` and keeps the pipe open; its end means "stop", so that a worker whose
runner was killed stops as well. A worker sends ``News``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.rotation import KEEP
from qkvary.studies.study import Cell
from qkvary.training.config import RunConfig

STOPPING = "stopping: steps are finished and written down first; a second time ends at once"
"""What a person is told who stops a training or a study."""
NewsKind = Literal["ready", "started", "progress", "ended", "elsewhere", "waiting", "note", "fatal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker is to do."""

    store: Path
    """The folder of all runs."""
    cells: tuple[Cell, ...]
    """The runs, in the order in which they should be made."""
    checkpoint_seconds: float
    """Seconds between two checkpoints of a run."""
    keep: int = KEEP
    """Checkpoints of a run that are left, the newest ones."""

    def to_line(self) -> bytes:
        """Return the job as one line."""
        cells = [{**_fields(cell), "run": to_dict(cell.run)} for cell in self.cells]
        fields = {**_fields(self), "store": str(self.store), "cells": cells}
        return encode(fields).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Job:
        """Return the job of a line."""
        fields = cast("dict[str, Any]", decode(line))
        store, seconds = Path(fields["store"]), float(fields["checkpoint_seconds"])
        cells = tuple(_cell(cell) for cell in fields["cells"])
        return cls(store=store, cells=cells, checkpoint_seconds=seconds, keep=int(fields["keep"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a worker has to say."""

    kind: NewsKind
    """``elsewhere``: another runner has made the run; ``waiting``: others hold all that is left;
    ``fatal``: no run can go on, for example because the disk is full."""
    cell: int = -1
    """Number of the run in the job."""
    text: str = ""
    """A sentence for people."""
    status: str = ""
    """How the run ended."""
    step: int = 0
    """Steps made."""
    steps: int = 0
    """Steps of the whole run."""
    loss: float | None = None
    """Latest training loss."""
    seconds: float = 0.0
    """Seconds that the worker spent on the run that ended."""
    code: int = 0
    """Exit code that a fatal problem asks for."""

    def to_line(self) -> bytes:
        """Return the news as one line."""
        return encode(_fields(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> News:
        """Return the news of a line.

        Raises:
            ValueError: if the line is something else.
        """
        try:
            return cls(**cast("dict[str, Any]", decode(line)))
        except TypeError as error:
            raise ValueError(f"not a worker's news: {error}") from None


def _cell(fields: dict[str, Any]) -> Cell:
    run = from_dict(RunConfig, fields.pop("run"))
    return Cell(run=run, **fields)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
