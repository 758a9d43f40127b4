"""Estimates the remaining time of a study from the runs that have ended."""

from collections.abc import Iterable

from qkvary.studies.study import Cell


class TimeEstimate:
    """Averages the durations of runs by setting and variant."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = {}

    def add(self, cell: Cell, seconds: float) -> None:
        """Add the duration of a run."""
        for group in ((cell.setting, cell.variant), (cell.setting,), ()):
            self._seconds.setdefault(group, []).append(seconds)

    @property
    def total_seconds(self) -> float:
        """The durations of all runs."""
        return sum(self._seconds.get((), ()))

    def expect(self, cell: Cell) -> float | None:
        """Return the expected duration of a run, from the runs most like it."""
        for group in ((cell.setting, cell.variant), (cell.setting,), ()):
            seconds = self._seconds.get(group)
            if seconds:
                return sum(seconds) / len(seconds)
        return None

    def seconds_left(self, cells: Iterable[Cell], workers: int) -> float | None:
        """Return the seconds until ``workers`` have done ``cells``, or None if unknown."""
        expected = [self.expect(cell) for cell in cells]
        known = [seconds for seconds in expected if seconds is not None]
        if len(known) < len(expected):
            return None
        return sum(known) / max(1, workers)
