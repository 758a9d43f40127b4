"""Progress of a study: live on a terminal, plain lines elsewhere, and a page of results so far."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from qkvary.studies.records import Record
from qkvary.studies.study import Cell
from qkvary.text.names import count
from qkvary.text.numbers import duration

FIRST_SECONDS, INTERVAL_SECONDS = 10.0, 20.0
"""Minimum number of seconds before the first page of partial results, and between two pages."""
SHARE = 0.05
"""Maximum share of the time that may be spent on these pages."""
PLAIN_SECONDS, LIVE_SECONDS = 10.0, 0.25
"""Seconds between two lines without a terminal, and between two updates on a terminal."""
COLUMN_WIDTH = 16
"""Width in characters of each setting's column in the table of means."""


@dataclass(slots=True, kw_only=True)
class ProgressView:
    """The progress of a study, for display."""

    name: str
    cells: Mapping[str, Cell]
    running: Callable[[], Iterable[tuple[Cell, Mapping[str, Any]]]] = tuple
    """Returns the current runs, each with the newest event of its log."""
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """The seconds of each run that this runner executed."""
    began: float = field(default_factory=time.monotonic)
    """When this runner began, on the monotonic clock."""
    seconds_left: float | None = None

    def count(self) -> Counter[str]:
        """Return the number of runs that have ended, by status."""
        return Counter(record.status for record in self.records.values())

    def estimate(self) -> None:
        """Estimate the time left, from finished runs that resemble the remaining ones."""
        spent: dict[tuple[str, ...], list[float]] = {}
        for key, seconds in self.seconds.items():
            for group in _groups(self.cells[key]):
                spent.setdefault(group, []).append(seconds)
        if spent:
            parallel = max(1.0, sum(spent[()]) / max(time.monotonic() - self.began, 1e-9))
            left = (cell for key, cell in self.cells.items() if key not in self.records)
            nearest = (next(g for g in _groups(cell) if g in spent) for cell in left)
            self.seconds_left = sum(fmean(spent[group]) for group in nearest) / parallel

    def summary(self) -> str:
        """Return the progress in one line."""
        counts, total = self.count(), len(self.cells)
        parts = [f"{len(self.records)} of {count(total, 'run')}"]
        parts += [f"{counts[bad]} {bad}" for bad in ("failed", "diverged") if counts[bad]]
        if self.seconds:
            minutes = (time.monotonic() - self.began) / 60.0
            parts.append(f"{len(self.seconds) / minutes:.1f} runs/min")
        if self.seconds_left is not None and len(self.records) < total:
            parts.append(f"{duration(self.seconds_left, 2)} left")
        return ", ".join(parts)

    def means(self) -> dict[str, dict[str, list[float]]]:
        """Return the results so far, one for each seed, by setting with its metric, and variant."""
        found: dict[str, dict[str, list[float]]] = {}
        for key, record in self.records.items():
            cell = self.cells[key]
            if record.status == "done" and record.headline is not None:
                column = found.setdefault(f"{cell.setting}\n{cell.run.task.metric}", {})
                column.setdefault(cell.variant, []).append(record.headline)
        return found


def _groups(cell: Cell) -> tuple[tuple[str, ...], ...]:
    return (cell.setting, cell.variant), (cell.setting,), ()


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
    """Shows a bar, the time left, a line per running run and the means so far in a terminal.

    The bar and the table show ended runs.
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
        self._task = self._bar.add_task(view.name, total=len(view.cells))
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()
        self._drawn = 0.0

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._live.console.print(Text(text))

    def refresh(self) -> None:
        """Redraw, at most four times a second."""
        now = time.monotonic()
        if now - self._drawn >= LIVE_SECONDS:
            self._drawn = now
            self._bar.update(self._task, completed=len(self._view.records))
            self._live.update(self._render(), refresh=True)

    def close(self) -> None:
        """Remove the bar."""
        self._live.stop()

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for cell, event in self._view.running():
            step, loss = event.get("step"), event.get("loss")
            table.add_row(
                Text(f"  {cell.title}"),
                Text("starting" if step is None else f"step {step}/{cell.run.training.steps}"),
                Text(f"loss {loss:.4g}" if isinstance(loss, float) else ""),
            )
        return Group(self._bar, Text(f"  {self._view.summary()}"), table, self._means())

    def _means(self) -> Table:
        """Return the mean of each variant in each setting, in as many columns as fit."""
        columns = self._view.means()
        shown = list(columns)[: self._live.console.width // COLUMN_WIDTH - 1]
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("  mean so far")
        for name in shown:
            table.add_column(Text(name), justify="right")
        for variant in dict.fromkeys(variant for column in columns.values() for variant in column):
            found = [columns[name].get(variant, ()) for name in shown]
            cells = [f"{fmean(some):.3f} ({len(some)})" if some else "" for some in found]
            table.add_row(Text(f"  {variant}"), *cells)
        return table


class Publisher:
    """Calls a function when there are new results and the last call was long enough ago."""

    def __init__(self, function: Callable[[], str] | None = None) -> None:
        self._function = function
        self._published = 0
        self._next = time.monotonic() + FIRST_SECONDS

    def publish(self, results: int) -> str:
        """Call the function if it is time and there are new results; after an error never again.

        The result is a line to show, or empty.
        """
        began = time.monotonic()
        if self._function is None or results == self._published or began < self._next:
            return ""
        self._published = results
        try:
            said = self._function()
        # No page of partial results is worth a study.
        except Exception as error:  # noqa: BLE001
            self._function = None
            return f"the page is not written before the end: {error}"
        self._next = began + max(INTERVAL_SECONDS, (time.monotonic() - began) / SHARE)
        return said
