"""What a person sees while a study runs: a live display on a terminal, plain lines elsewhere."""

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
    """Return a duration as people say it."""
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
    """What one worker is doing."""

    title: str = "starting"
    """The run, in a few words."""
    step: int = 0
    """Steps made."""
    steps: int = 0
    """Steps of the whole run."""
    loss: float | None = None
    """Latest training loss."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """Everything that a display may show."""

    name: str
    """Name of the study."""
    total: int
    """Runs of the study."""
    done: int = 0
    """Runs that have ended."""
    failed: int = 0
    """Those of them that failed."""
    diverged: int = 0
    """Those of them that diverged."""
    seconds_left: float | None = None
    """Estimate of the seconds until all are done."""
    runs_per_minute: float | None = None
    """Runs ended per minute so far."""
    workers: dict[int, WorkerLine] = field(default_factory=dict[int, WorkerLine])
    """Each worker by number."""

    def sentence(self) -> str:
        """Return where the study stands, in one line."""
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
    """Shows a scene."""

    def note(self, text: str) -> None:
        """Say one thing, once."""
        ...

    def ended(self, text: str) -> None:
        """Say that a run has ended."""
        ...

    def refresh(self) -> None:
        """Show the scene as it is now; called often."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


class SilentDisplay:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def ended(self, text: str) -> None:
        """Say nothing."""

    def refresh(self) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


class PlainDisplay:
    """One line for each run that ends, for logs and pipes."""

    def __init__(self, console: Console, scene: Scene) -> None:
        self._console, self._scene = console, scene

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def ended(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(f"{text}  [{self._scene.sentence()}]"), soft_wrap=True)

    def refresh(self) -> None:
        """Print nothing: the lines say it all."""

    def close(self) -> None:
        """Do nothing."""


class LiveDisplay:
    """A bar, the time left, and a line for each worker, at the bottom of a terminal."""

    def __init__(self, console: Console, scene: Scene) -> None:
        self._scene = scene
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            console=console,
            expand=True,
        )
        self._task = self._bar.add_task(scene.name, total=scene.total)
        self._live = Live(self._render(), console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._live.console.print(Text(text))

    def ended(self, text: str) -> None:
        """Print nothing: the bar moves; only trouble is worth a line."""

    def refresh(self) -> None:
        """Draw again, at most eight times a second."""
        now = time.monotonic()
        if now - self._drawn >= 0.125:
            self._drawn = now
            self._bar.update(self._task, completed=self._scene.done, total=self._scene.total)
            self._live.update(self._render(), refresh=True)

    def close(self) -> None:
        """Remove the bar."""
        self._live.stop()

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for number, line in sorted(self._scene.workers.items()):
            step = f"step {line.step}/{line.steps}" if line.steps else ""
            loss = f"loss {line.loss:.4g}" if line.loss is not None else ""
            table.add_row(
                Text(f"  worker {number}", style="dim"), Text(line.title), Text(step), Text(loss)
            )
        return Group(self._bar, Text(f"  {self._scene.sentence()}"), table)
