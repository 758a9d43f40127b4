"""How a training shows itself: one line that moves, and a line for each validation."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import print_error, printable
from qkvary.studies.running.live import format_seconds
from qkvary.studies.running.messages import WorkerMessage
from qkvary.studies.study import Cell

PAUSE_ON_TERMINAL, PAUSE_ELSEWHERE = 0.2, 30.0
"""Seconds between two lines that say how far it is."""


class TrainingDisplay:
    """Takes news and log entries of runs, and prints what people want to see of them."""

    def __init__(self, screen: Console, cells: tuple[Cell, ...], *, quiet: bool = False) -> None:
        """Print to a console, or only errors where ``quiet``."""
        self._screen, self._cells, self._quiet = screen, cells, quiet
        self._pause = PAUSE_ON_TERMINAL if screen.is_terminal else PAUSE_ELSEWHERE
        self._shown = 0.0
        self._drawn = False
        self._first: tuple[float, int] | None = None
        self.code = 0

    def handle(self, news: WorkerMessage) -> None:
        """Take one piece of news."""
        if news.kind == "progress":
            self._progress(news)
        elif news.kind == "started":
            self._first = None
            self._line(self._cells[news.cell].title, style="bold")
        elif news.kind == "ended":
            self._ended(news)
        elif news.kind == "waiting":
            self._line(f"waiting for {news.text}")
        elif news.kind == "note":
            self._clear()
            print_error(news.text)

    def log(self, _cell: Cell, entry: Mapping[str, Any]) -> None:
        """Take one entry of a run's log."""
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
            way = [f"{name} {now} (was {begun})" for name, (begun, now) in changed.items()]
            self._line(", ".join([f"goes on at {step}", *way]))

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._clear()

    def _ended(self, news: WorkerMessage) -> None:
        if news.status == "diverged":
            self._clear()
            print_error(f"{self._cells[news.cell].title} diverged: {news.text}")
            self.code = self.code or 5
        elif news.status == "failed":
            self._clear()
            print_error(f"{self._cells[news.cell].title} failed: {news.text}")
            self.code = self.code or 1
        else:
            took = format_seconds(news.seconds)
            self._line(f"{self._cells[news.cell].title} is done in {took}: loss {news.loss:.4f}")

    def _progress(self, news: WorkerMessage) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = (now, news.step)
        if now - self._shown < self._pause:
            return
        self._shown = now
        text = self._describe(news, now)
        if self._quiet:
            return
        if self._screen.is_terminal:
            self._drawn = True
            self._screen.print(Text(text.ljust(self._screen.width - 1)), end="\r", no_wrap=True)
        else:
            self._screen.print(Text(text), soft_wrap=True)

    def _describe(self, news: WorkerMessage, now: float) -> str:
        parts = [f"step {news.step:,} of {news.steps:,}"]
        if news.loss is not None:
            parts.append(f"loss {news.loss:.4f}")
        began, first = self._first or (now, news.step)
        if news.step > first:
            rate = (news.step - first) / (now - began)
            run = self._cells[news.cell].run
            tokens = run.training.batch_size * run.task.sequence_length
            parts.append(f"{rate * tokens:,.0f} tokens/s")
            parts.append(f"{format_seconds((news.steps - news.step) / rate)} left")
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
