"""Progress of a study: live on a terminal, plain lines elsewhere, and a page of results so far."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from qkvary.studies.study import Cell
from qkvary.text.names import count
from qkvary.text.units import duration

FIRST_SECONDS, INTERVAL_SECONDS = 10.0, 20.0
"""The minimum of seconds before the first page of results so far, and between two."""
SHARE = 0.05
"""The maximum share of the time that the pages take."""
PLAIN_SECONDS, LIVE_SECONDS = 10.0, 0.25
"""Seconds between two lines without a terminal, and two pictures on one."""
COLUMN_WIDTH = 16
"""Columns of a terminal for each setting in the table of means."""


@dataclass(slots=True, kw_only=True)
class ProgressView:
    """The progress of a study, to be displayed."""

    name: str
    """Name of the study."""
    total: int
    """Runs of the study."""
    running: Callable[[], Iterable[tuple[Cell, dict[str, object]]]] = tuple
    """Returns the runs that are executed, each with the newest event of its log."""
    counts: Counter[str] = field(default_factory=Counter[str])
    """Runs that have ended, by status."""
    seconds: dict[tuple[str, ...], list[float]] = field(
        default_factory=dict[tuple[str, ...], list[float]]
    )
    """The durations of runs, by setting and variant, by setting, and of all."""
    began: float = field(default_factory=time.monotonic)
    """When this runner began."""
    seconds_left: float | None = None
    """Estimated seconds until all are done."""
    results: dict[tuple[str, str], list[float]] = field(
        default_factory=dict[tuple[str, str], list[float]]
    )
    """The results so far, one for each seed, by variant and by setting with its metric."""

    def add(self, cell: Cell, result: float | None) -> None:
        """Add the result of a run."""
        if result is not None:
            column = f"{cell.setting}\n{cell.run.task.metric}"
            self.results.setdefault((cell.variant, column), []).append(result)

    def add_seconds(self, cell: Cell, seconds: float) -> None:
        """Add the duration of a run."""
        for group in _groups(cell):
            self.seconds.setdefault(group, []).append(seconds)

    def estimate(self, left: Iterable[Cell]) -> None:
        """Estimate the time that is left from the runs that are most like those that are left."""
        elapsed, whole = time.monotonic() - self.began, self.seconds.get((), [])
        expected = [
            next((self.seconds[group] for group in _groups(cell) if group in self.seconds), [])
            for cell in left
        ]
        if not whole or not all(expected):
            self.seconds_left = None
            return
        parallel = max(1.0, sum(whole) / max(elapsed, 1e-9))
        self.seconds_left = sum(sum(some) / len(some) for some in expected) / parallel

    def summary(self) -> str:
        """Return the progress in one line."""
        ended, made = self.counts.total(), len(self.seconds.get((), ()))
        parts = [f"{ended} of {count(self.total, 'run')}"]
        bad = (status for status in ("failed", "diverged") if self.counts[status])
        parts += [f"{self.counts[status]} {status}" for status in bad]
        if made:
            parts.append(f"{60.0 * made / (time.monotonic() - self.began):.1f} runs/min")
        if self.seconds_left is not None and ended < self.total:
            parts.append(f"{duration(self.seconds_left, 2)} left")
        return ", ".join(parts)


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
        """Redraw, at most four times a second."""
        now = time.monotonic()
        if now - self._drawn >= LIVE_SECONDS:
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


class Publisher:
    """Calls a function when there are new results and the last call was long enough ago."""

    def __init__(self, function: Callable[[], str] | None = None) -> None:
        self._function = function
        self._new = False
        self._next = time.monotonic() + FIRST_SECONDS

    def add(self) -> None:
        """Note that there is a new result."""
        self._new = True

    def publish(self) -> str:
        """Call the function if it is time; after an error never again.

        Returns:
            What the function returns or, in a sentence, its error; else an empty text.
        """
        began = time.monotonic()
        if self._function is None or not self._new or began < self._next:
            return ""
        self._new = False
        try:
            said = self._function()
        # No page is worth a study.
        except Exception as error:  # noqa: BLE001
            self._function = None
            return f"the page is not written before the end: {error}"
        self._next = began + max(INTERVAL_SECONDS, (time.monotonic() - began) / SHARE)
        return said
