"""Progress of a study: one line, and a page of results so far."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from qkvary.studies.records import Record
from qkvary.studies.study import Cell
from qkvary.text.names import count
from qkvary.text.numbers import duration

FIRST_SECONDS, INTERVAL_SECONDS = 10.0, 20.0
"""Minimum number of seconds before the first page of partial results, and between two pages."""
SHARE = 0.05
"""Maximum share of the time that may be spent on these pages."""


@dataclass(slots=True, kw_only=True)
class StudyProgress:
    """The progress of a study."""

    cells: Mapping[str, Cell]
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """The seconds of each run that this runner executed."""
    began: float = field(default_factory=time.monotonic)
    """When this runner began, on the monotonic clock."""
    speed: str = ""
    """Runs per minute, and the time left."""
    last: str = ""
    """The result of the last run that was done."""

    def count(self) -> Counter[str]:
        """Return the number of runs that have ended, by status."""
        return Counter(record.status for record in self.records.values())

    def add_seconds(self, key: str, seconds: float) -> None:
        """Add the time of a run, and estimate the time left from runs similar to the open ones."""
        self.seconds[key] = seconds
        spent: dict[tuple[str, ...], list[float]] = {}
        for one, its_seconds in self.seconds.items():
            for group in _groups(self.cells[one]):
                spent.setdefault(group, []).append(its_seconds)
        elapsed = max(time.monotonic() - self.began, 1e-9)
        parallel = max(1.0, sum(spent[()]) / elapsed)
        left = (cell for one, cell in self.cells.items() if one not in self.records)
        nearest = (next(g for g in _groups(cell) if g in spent) for cell in left)
        seconds_left = sum(fmean(spent[group]) for group in nearest) / parallel
        rate = f"{60.0 * len(self.seconds) / elapsed:.1f} runs/min"
        self.speed = f"{rate}, {duration(seconds_left, 2)} left"

    def summary(self) -> str:
        """Return the progress in one line."""
        counts = self.count()
        parts = [f"{len(self.records)} of {count(len(self.cells), 'run')}"]
        parts += [f"{counts[bad]} {bad}" for bad in ("failed", "diverged") if counts[bad]]
        text = ", ".join(filter(None, [*parts, self.speed]))
        return f"{text}; last: {self.last}" if self.last else text


def _groups(cell: Cell) -> tuple[tuple[str, ...], ...]:
    return (cell.setting, cell.variant), (cell.setting,), ()


class Publisher:
    """Calls a function when there are new results and the last call was long enough ago."""

    def __init__(self, function: Callable[[], str] | None = None) -> None:
        self._function = function
        self._published = 0
        self._next = time.monotonic() + FIRST_SECONDS

    def publish(self, results: int) -> str:
        """Call the function if enough time has passed and there are new results.

        If the function raises an error, it is never called again. Returns a line to show to the
        user, or an empty string.
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
            return f"the page will be written only at the end: {error}"
        self._next = began + max(INTERVAL_SECONDS, (time.monotonic() - began) / SHARE)
        return said
