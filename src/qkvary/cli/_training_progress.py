"""The progress of a training: one updated line, and a line for each validation."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from qkvary.api.training import Display
from qkvary.cli._data_prepare import show_preparation
from qkvary.cli._output import ProgressLine, console, print_line
from qkvary.cli._streams import print_error
from qkvary.data.preparation import Progress
from qkvary.storage.locks import Owner
from qkvary.studies.running.records import Record
from qkvary.studies.running.signals import STOPPING
from qkvary.studies.study import Cell
from qkvary.text.units import duration
from qkvary.training.progress import Callbacks, Event


class TrainingDisplay(Display):
    """Prints what a training does on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Print only warnings and errors if ``quiet``."""
        self._line, self.is_visible = ProgressLine(console(sys.stderr)), not quiet
        self._cell: Cell | None = None
        self._first: tuple[float, float] | None = None
        self._waits_for = ""
        self.callbacks = Callbacks(on_start=self._begin, on_event=self._progress, on_log=self._log)

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._line.clear()
        print_error(text)

    def prepare(self) -> AbstractContextManager[Callable[[Progress], None]]:
        """Show the progress of the preparation of the data."""
        return show_preparation()

    def wait(self, cell: Cell, owner: Owner | None) -> None:
        """Print the owner of a run, once."""
        if owner is not None and str(owner) != self._waits_for:
            self._waits_for = str(owner)
            self._print(f"waiting for {owner}: {cell.title}")

    def stop(self) -> None:
        """Print that the training is stopped."""
        # A handler may interrupt a print, so it must not print itself.
        with suppress(OSError):
            os.write(2, f"\n{STOPPING}\n".encode())

    def close(self) -> None:
        """Clear the line of progress."""
        self._line.clear()

    def end(self, cell: Cell, record: Record, seconds: float) -> None:
        """Print how a run has ended."""
        if record.status == "done":
            took = duration(seconds, 2)
            self._print(f"{cell.title} is done in {took}: loss {record.headline:.4f}")
        else:
            self.warn(f"{cell.title} {record.status}: {record.message}")

    def _begin(self, cell: Cell) -> None:
        self._cell, self._first = cell, None
        self._print(cell.title, style="bold")

    def _log(self, entry: Mapping[str, Any]) -> None:
        """Print one entry of a run's log."""
        step = f"step {entry['step']:,}"
        if entry["event"] == "validation":
            scores = [f"{name} {entry[name]:.4g}" for name in ("perplexity", "bits_per_byte")]
            self._print(f"{step}: validation loss {entry['loss']:.4f}, {', '.join(scores)}")
        elif entry["event"] == "sample":
            self._print(f"{step}: {entry['text']}", style="italic")
        elif entry["event"] == "skipped":
            loss, norm = entry["loss"], entry["gradient_norm"]
            self._print(f"{step}: skipped, loss {loss:.4g}, gradient norm {norm:.4g}")
        elif entry["event"] == "resumed":
            changed = entry.get("changed", {})
            changes = [f"{name} {now} (was {begun})" for name, (begun, now) in changed.items()]
            self._print(", ".join([f"resumed at {step}", *changes]))

    def _progress(self, event: Event) -> None:
        if event.warning:
            self.warn(
                event.warning if self._cell is None else f"{self._cell.title}: {event.warning}"
            )
            return
        now = time.monotonic()
        if self._first is None:
            self._first = (now, event.step + event.part)
        if self.is_visible:
            self._line.show(lambda: self._describe(event, now))

    def _describe(self, event: Event, now: float) -> str:
        done = event.step + event.part
        if event.part:
            parts = [f"step {event.step + 1:,} of {event.steps:,}, {event.part:.0%} of it"]
        else:
            parts = [f"step {event.step:,} of {event.steps:,}"]
        if event.loss is not None and math.isfinite(event.loss):
            parts.append(f"loss {event.loss:.4f}")
        began, first = self._first or (now, done)
        if done > first and self._cell is not None:
            rate = (done - first) / (now - began)
            run = self._cell.run
            tokens = run.training.batch_size * run.sequence_length
            parts.append(f"{rate * tokens:,.0f} tokens/s")
            parts.append(f"{duration((event.steps - done) / rate, 2)} left")
        return ", ".join(parts)

    def _print(self, text: str, style: str = "") -> None:
        if self.is_visible:
            self._line.clear()
            print_line(self._line.screen, text, style)
