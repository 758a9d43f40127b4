"""The progress of a training: one updated line, and a line for each validation."""

import math
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from qkvary.cli._output import ProgressLine, print_line
from qkvary.cli._streams import print_error
from qkvary.studies.running.messages import WorkerMessage
from qkvary.studies.study import Cell
from qkvary.text.units import duration


class TrainingDisplay:
    """Prints the worker messages and log entries of runs."""

    def __init__(self, screen: Console, cells: tuple[Cell, ...], *, quiet: bool = False) -> None:
        """Print to a console; only errors if ``quiet``."""
        self._line, self._cells, self._quiet = ProgressLine(screen), cells, quiet
        self._first: tuple[float, float] | None = None
        self.code = 0

    def handle(self, message: WorkerMessage) -> None:
        """Print one worker message."""
        if message.kind == "progress":
            self._progress(message)
        elif message.kind == "started":
            self._first = None
            self._print(self._cells[message.cell].title, style="bold")
        elif message.kind == "ended":
            self._ended(message)
        elif message.kind == "waiting":
            self._print(f"waiting for {message.text}")
        elif message.kind == "note":
            self._print_error(message.text)

    def log(self, _cell: Cell, entry: Mapping[str, Any]) -> None:
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

    def close(self) -> None:
        """Clear the line of progress."""
        self._line.clear()

    def _ended(self, message: WorkerMessage) -> None:
        if message.status == "diverged":
            self._print_error(f"{self._cells[message.cell].title} diverged: {message.text}")
            self.code = self.code or 5
        elif message.status == "failed":
            self._print_error(f"{self._cells[message.cell].title} failed: {message.text}")
            self.code = self.code or 1
        else:
            took = duration(message.seconds, 2)
            self._print(
                f"{self._cells[message.cell].title} is done in {took}: loss {message.loss:.4f}"
            )

    def _progress(self, message: WorkerMessage) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, message.step + message.part)
        if not self._quiet:
            self._line.show(lambda: self._describe(message, now))

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

    def _print(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._line.clear()
            print_line(self._line.screen, text, style)

    def _print_error(self, text: str) -> None:
        self._line.clear()
        print_error(text)
