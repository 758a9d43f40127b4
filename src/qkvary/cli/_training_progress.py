"""The progress of a training: one updated line, and a line for each validation."""

import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import printable
from qkvary.cli._streams import print_error
from qkvary.studies.running.messages import WorkerMessage
from qkvary.studies.study import Cell
from qkvary.text.units import duration

PAUSE_ON_TERMINAL, PAUSE_ELSEWHERE = 0.2, 30.0
"""Seconds between two lines of progress."""


class TrainingDisplay:
    """Prints the worker messages and log entries of runs."""

    def __init__(self, screen: Console, cells: tuple[Cell, ...], *, quiet: bool = False) -> None:
        """Print to a console; only errors if ``quiet``."""
        self._screen, self._cells, self._quiet = screen, cells, quiet
        self._pause = PAUSE_ON_TERMINAL if screen.is_terminal else PAUSE_ELSEWHERE
        self._shown = 0.0
        self._drawn = False
        self._first: tuple[float, float] | None = None
        self.code = 0

    def handle(self, message: WorkerMessage) -> None:
        """Print one worker message."""
        if message.kind == "progress":
            self._progress(message)
        elif message.kind == "started":
            self._first = None
            self._line(self._cells[message.cell].title, style="bold")
        elif message.kind == "ended":
            self._ended(message)
        elif message.kind == "waiting":
            self._line(f"waiting for {message.text}")
        elif message.kind == "note":
            self._clear()
            print_error(message.text)

    def log(self, _cell: Cell, entry: Mapping[str, Any]) -> None:
        """Print one entry of a run's log."""
        step = f"step {entry['step']:,}"
        if entry["event"] == "validation":
            scores = [f"{name} {entry[name]:.4g}" for name in ("perplexity", "bits_per_byte")]
            self._line(f"{step}: validation loss {entry['loss']:.4f}, {', '.join(scores)}")
        elif entry["event"] == "sample":
            self._line(f"{step}: {entry['text']}", style="italic")
        elif entry["event"] == "skipped":
            loss, norm = entry["loss"], entry["gradient_norm"]
            self._line(f"{step}: skipped, loss {loss:.4g}, gradient norm {norm:.4g}")
        elif entry["event"] == "resumed":
            changed = entry.get("changed", {})
            changes = [f"{name} {now} (was {begun})" for name, (begun, now) in changed.items()]
            self._line(", ".join([f"resumed at {step}", *changes]))

    def close(self) -> None:
        """Clear the line of progress."""
        self._clear()

    def _ended(self, message: WorkerMessage) -> None:
        if message.status == "diverged":
            self._clear()
            print_error(f"{self._cells[message.cell].title} diverged: {message.text}")
            self.code = self.code or 5
        elif message.status == "failed":
            self._clear()
            print_error(f"{self._cells[message.cell].title} failed: {message.text}")
            self.code = self.code or 1
        else:
            took = duration(message.seconds, 2)
            self._line(
                f"{self._cells[message.cell].title} is done in {took}: loss {message.loss:.4f}"
            )

    def _progress(self, message: WorkerMessage) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, message.step + message.part)
        if now - self._shown < self._pause:
            return
        self._shown = now
        text = self._describe(message, now)
        if self._quiet:
            return
        if self._screen.is_terminal:
            self._drawn = True
            self._screen.print(Text(text.ljust(self._screen.width - 1)), end="\r", no_wrap=True)
        else:
            self._screen.print(Text(text), soft_wrap=True)

    def _describe(self, message: WorkerMessage, now: float) -> str:
        done = message.step + message.part
        if message.part:
            parts = [f"step {message.step + 1:,} of {message.steps:,}, {message.part:.0%} of it"]
        else:
            parts = [f"step {message.step:,} of {message.steps:,}"]
        if message.loss is not None and math.isfinite(message.loss):
            parts.append(f"loss {message.loss:.4f}")
        began, first = self._first or (now, done)
        if done > first:
            rate = (done - first) / (now - began)
            run = self._cells[message.cell].run
            tokens = run.training.batch_size * run.sequence_length
            parts.append(f"{rate * tokens:,.0f} tokens/s")
            parts.append(f"{duration((message.steps - done) / rate, 2)} left")
        return ", ".join(parts)

    def _line(self, text: str, style: str = "") -> None:
        if self._quiet:
            return
        self._clear()
        self._screen.print(Text(printable(text), style=style), soft_wrap=True)

    def _clear(self) -> None:
        if self._drawn:
            self._screen.print(" " * (self._screen.width - 1), end="\r", no_wrap=True)
            self._drawn = False
