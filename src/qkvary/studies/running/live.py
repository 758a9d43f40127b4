"""The progress display of a study: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text


def format_seconds(seconds: float | None) -> str:
    """Format a duration."""
    if seconds is None:
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass(slots=True, kw_only=True)
class WorkerLine:
    """The progress of one worker."""

    title: str = "starting"
    """Title of the run."""
    step: int = 0
    """Completed steps."""
    steps: int = 0
    """Steps of the whole run."""
    loss: float | None = None
    """Latest training loss."""


@dataclass(slots=True, kw_only=True)
class ProgressView:
    """The progress of a study, to be displayed."""

    name: str
    """Name of the study."""
    total: int
    """Runs of the study."""
    done: int = 0
    """Runs that have ended."""
    failed: int = 0
    """Runs that failed."""
    diverged: int = 0
    """Runs that diverged."""
    seconds_left: float | None = None
    """Estimated seconds until all are done."""
    runs_per_minute: float | None = None
    """Runs ended per minute so far."""
    workers: dict[int, WorkerLine] = field(default_factory=dict[int, WorkerLine])
    """The workers by number."""

    def summary(self) -> str:
        """Return the progress in one line."""
        parts = [f"{self.done} of {self.total} runs"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.diverged:
            parts.append(f"{self.diverged} diverged")
        if self.runs_per_minute is not None:
            parts.append(f"{self.runs_per_minute:.1f} runs/min")
        if self.seconds_left is not None and self.done < self.total:
            parts.append(f"{format_seconds(self.seconds_left)} left")
        return ", ".join(parts)


class Display(Protocol):
    """Shows the progress of a study."""

    def note(self, text: str) -> None:
        """Show a message."""
        ...

    def ended(self, text: str) -> None:
        """Show that a run has ended."""
        ...

    def refresh(self) -> None:
        """Show the current state; called often."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


class SilentDisplay:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def ended(self, text: str) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainDisplay:
    """Prints one line per ended run, for logs and pipes."""

    def __init__(self, console: Console, view: ProgressView) -> None:
        self._console, self._view = console, view

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def ended(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(f"{text}  [{self._view.summary()}]"), soft_wrap=True)

    def refresh(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class LiveDisplay:
    """Shows a bar, the time left and a line per worker at the bottom of a terminal."""

    def __init__(self, console: Console, view: ProgressView) -> None:
        self._view = view
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task(view.name, total=view.total)
        self._live = Live(self._render(), console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._live.console.print(Text(text))

    def ended(self, text: str) -> None:
        """Do nothing: the bar shows it."""

    def refresh(self) -> None:
        """Redraw, at most eight times a second."""
        now = time.monotonic()
        if now - self._drawn >= 0.125:
            self._drawn = now
            self._bar.update(self._task, completed=self._view.done, total=self._view.total)
            self._live.update(self._render(), refresh=True)

    def close(self) -> None:
        """Remove the bar."""
        self._live.stop()

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for number, line in sorted(self._view.workers.items()):
            step = f"step {line.step}/{line.steps}" if line.steps else ""
            loss = f"loss {line.loss:.4g}" if line.loss is not None else ""
            table.add_row(
                Text(f"  worker {number}", style="dim"), Text(line.title), Text(step), Text(loss)
            )
        return Group(self._bar, Text(f"  {self._view.summary()}"), table)
