"""The log of a run as TensorBoard shows it: a second copy, never read back.

The journal is what a run goes on from and what a report reads; this is for watching.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.packages import require

NOT_CURVES = ("event", "step")


class TensorBoardLog:
    """Writes every number of a log under ``<event>/<name>``, and texts as texts."""

    def __init__(self, directory: Path) -> None:
        """Begin a file of events in ``directory``.

        Raises:
            UsageError: if TensorBoard is not installed.
        """
        require("tensorboard")
        # Not everybody has it.
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self._open = SummaryWriter
        self._directory = directory
        self._writer: Any = None

    def write(self, entry: Mapping[str, JsonValue]) -> None:
        """Take one entry of the log; what an earlier, killed process wrote behind it is hidden."""
        step = cast("int", entry["step"])
        if self._writer is None:
            # A run that goes on logs again what is behind its checkpoint, and nothing at its step.
            first = step + (entry["event"] == "resumed")
            self._writer = self._open(str(self._directory), purge_step=first)
        for name, value in entry.items():
            if name in NOT_CURVES:
                continue
            tag = f"{entry['event']}/{name}"
            if isinstance(value, str):
                self._writer.add_text(tag, value, step)
            elif isinstance(value, int | float):
                self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Flush and end the file."""
        if self._writer is not None:
            self._writer.close()
