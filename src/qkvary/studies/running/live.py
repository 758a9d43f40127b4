"""The progress display of a study: live on a terminal, plain lines elsewhere."""

import time
from collections import Counter
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from qkvary.studies.study import Cell
from qkvary.text.names import count
from qkvary.text.units import duration

PLAIN_SECONDS = 10.0
"""Seconds between two lines of progress where there is no terminal."""
COLUMN_WIDTH = 16
"""Columns of a terminal for each setting in the table of means."""


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
    counts: Counter[str] = field(default_factory=Counter[str])
    """Runs that have ended, by status."""
    seconds_left: float | None = None
    """Estimated seconds until all are done."""
    runs_per_minute: float | None = None
    """Runs ended per minute so far."""
    workers: dict[int, WorkerLine] = field(default_factory=dict[int, WorkerLine])
    """The workers by number."""
    results: dict[tuple[str, str], list[float]] = field(
        default_factory=dict[tuple[str, str], list[float]]
    )
    """The results so far, one for each seed, by variant and by setting with its metric."""

    def add(self, cell: Cell, result: float | None) -> None:
        """Add the result of a run."""
        if result is not None:
            column = f"{cell.setting}\n{cell.run.task.metric}"
            self.results.setdefault((cell.variant, column), []).append(result)

    def summary(self) -> str:
        """Return the progress in one line."""
        ended = self.counts.total()
        parts = [f"{ended} of {count(self.total, 'run')}"]
        bad = (status for status in ("failed", "diverged") if self.counts[status])
        parts += [f"{self.counts[status]} {status}" for status in bad]
        if self.runs_per_minute is not None:
            parts.append(f"{self.runs_per_minute:.1f} runs/min")
        if self.seconds_left is not None and ended < self.total:
            parts.append(f"{duration(self.seconds_left, 2)} left")
        return ", ".join(parts)


class Display:
    """Shows the progress of a study; this one shows nothing."""

    def note(self, text: str) -> None:
        """Show a message."""

    def ended(self, text: str) -> None:
        """Show that a run has ended."""

    def refresh(self) -> None:
        """Show the current state; called often."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainDisplay(Display):
    """Prints the progress every ten seconds at most, for logs and pipes."""

    def __init__(self, console: Console, view: ProgressView) -> None:
        self._console, self._view = console, view
        self._printed = float("-inf")
        self._waiting = ""

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(text), soft_wrap=True)

    def ended(self, text: str) -> None:
        """Print a line, or keep it until ten seconds have passed."""
        self._waiting = text
        self.refresh()

    def refresh(self) -> None:
        """Print the newest line if ten seconds have passed."""
        if time.monotonic() - self._printed >= PLAIN_SECONDS:
            self.close()

    def close(self) -> None:
        """Print the newest line."""
        if self._waiting:
            self.note(f"{self._waiting}  [{self._view.summary()}]")
            self._printed, self._waiting = time.monotonic(), ""


class LiveDisplay(Display):
    """Shows a bar, the time left, a line per worker and the means so far in a terminal.

    Bar and table show that a run has ended.
    """

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
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._live.console.print(Text(text))

    def refresh(self) -> None:
        """Redraw, at most eight times a second."""
        now = time.monotonic()
        if now - self._drawn >= 0.125:
            self._drawn = now
            self._bar.update(
                self._task, completed=self._view.counts.total(), total=self._view.total
            )
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
        return Group(self._bar, Text(f"  {self._view.summary()}"), table, self._means())

    def _means(self) -> Table:
        """Return the mean of each variant in each setting, in as many columns as fit."""
        results = self._view.results
        columns = list(dict.fromkeys(column for _, column in results))
        room = self._live.console.width // COLUMN_WIDTH - 1
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("  mean so far")
        for column in columns[:room]:
            table.add_column(Text(column), justify="right")
        for variant in dict.fromkeys(variant for variant, _ in results):
            found = [results.get((variant, column), ()) for column in columns[:room]]
            cells = [f"{sum(some) / len(some):.3f} ({len(some)})" if some else "" for some in found]
            table.add_row(Text(f"  {variant}"), *cells)
        return table
