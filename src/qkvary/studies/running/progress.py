"""Progress of a study: one line, and a page of results so far."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from qkvary.studies.records import Record
from qkvary.text.names import count
from qkvary.text.numbers import duration

FIRST_SECONDS, INTERVAL_SECONDS = 10.0, 20.0
"""Minimum number of seconds before the first page of partial results, and between two pages."""
SHARE = 0.05
"""Maximum share of the time that may be spent on these pages."""


@dataclass(slots=True, kw_only=True)
class StudyProgress:
    """The progress of a study."""

    planned: int
    records: dict[str, Record] = field(default_factory=dict[str, Record])
    executed: int = 0
    """Number of runs that this runner executed."""
    began: float = field(default_factory=time.monotonic)
    """When this runner began, on the monotonic clock."""
    last: str = ""
    """The result of the last run that was done."""

    def count(self) -> Counter[str]:
        """Return the number of runs that have ended, by status."""
        return Counter(record.status for record in self.records.values())

    def summary(self) -> str:
        """Return the progress in one line; the runs left are taken to be as long as the others."""
        counts = self.count()
        parts = [f"{len(self.records)} of {count(self.planned, 'run')}"]
        parts += [f"{counts[bad]} {bad}" for bad in ("failed", "diverged") if counts[bad]]
        if self.executed:
            seconds_per_run = (time.monotonic() - self.began) / self.executed
            left = duration(seconds_per_run * (self.planned - len(self.records)), 2)
            parts += [f"{60.0 / seconds_per_run:.1f} runs/min", f"{left} left"]
        text = ", ".join(parts)
        return f"{text}; last: {self.last}" if self.last else text


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
