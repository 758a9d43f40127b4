"""Writes the log of a run for TensorBoard as well; it is never read back."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.packages import require

NOT_CURVES = ("event", "step")


class TensorBoardLog:
    """Writes the numbers and texts of a log under ``<event>/<name>``."""

    def __init__(self, directory: Path) -> None:
        """Create an event file in ``directory``.

        Raises:
            UsageError: if TensorBoard is not installed.
        """
        require("tensorboard")
        # Optional dependency.
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self._open = SummaryWriter
        self._directory = directory
        self._writer: Any = None

    def write(self, entry: Mapping[str, JsonValue]) -> None:
        """Write one log entry; hide later entries of an earlier, killed process."""
        step = cast("int", entry["step"])
        if self._writer is None:
            # A resumed run repeats the entries after its checkpoint, but not those at its step.
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
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
