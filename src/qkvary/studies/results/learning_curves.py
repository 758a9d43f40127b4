"""Computes learning curves: the mean over the seeds, for each variant and setting of a study.

A band spans the smallest and the largest value over the seeds. If a run stopped because it had
solved its task, its last values count for all later steps, so that the mean is always over the
same runs. Runs that diverged, failed or are still training are not extended. Never imports torch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qkvary.studies.results.observations import Observation
from qkvary.studies.results.statistics import mean
from qkvary.studies.results.summary import LearningCurve

Event = Mapping[str, Any]
"""A log entry: ``event``, ``step``, ``seconds`` and the logged values."""

_NOT_FIGURES = {"event", "step", "seconds"}


class _Run(NamedTuple):
    """The curve of one quantity in one run."""

    points: Mapping[int, tuple[float, float]]
    """The value and the seconds of training so far at each step."""
    solved: bool
    """Whether the run stopped because it had solved its task."""

    def at(self, step: int) -> tuple[float, float] | None:
        last = max(self.points)
        return self.points[last] if self.solved and step > last else self.points.get(step)


def build_curves(
    observations: Sequence[Observation], events: Mapping[str, Iterable[Event]]
) -> tuple[LearningCurve, ...]:
    """Average the logs of the selected runs over their seeds, step by step."""
    groups: dict[tuple[str, str, str], list[_Run]] = {}
    for run in observations:
        log = events.get(run.row.run_key or "")
        if not run.row.selected or log is None:
            continue
        solved = (
            run.row.state == "done"
            and run.row.steps_to_solve is not None
            and run.record is not None
            and bool(run.record.config.get("training", {}).get("stop_when_solved"))
        )
        for quantity, points in group_by_quantity(log).items():
            group = groups.setdefault((run.row.setting, run.row.variant, quantity), [])
            group.append(_Run(points=points, solved=solved))
    return tuple(_curve(*names, runs) for names, runs in groups.items())


def group_by_quantity(events: Iterable[Event]) -> dict[str, dict[int, tuple[float, float]]]:
    """Group the finite values of a log by quantity and step, with the seconds so far.

    A resumed run repeats the entries after its checkpoint; the last entry of a step counts.
    """
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for event in events:
        kind = event.get("event")
        if kind not in {"train", "validation"}:
            continue
        for name, value in event.items():
            if name in _NOT_FIGURES or isinstance(value, bool | str) or value is None:
                continue
            if math.isfinite(value):
                step, seconds = int(event["step"]), float(event.get("seconds", 0.0))
                found.setdefault(f"{kind} {name}", {})[step] = (float(value), seconds)
    return found


def _curve(setting: str, variant: str, quantity: str, runs: Sequence[_Run]) -> LearningCurve:
    steps = sorted({step for run in runs for step in run.points})
    points = [[point for run in runs if (point := run.at(step))] for step in steps]
    return LearningCurve(
        setting=setting,
        variant=variant,
        quantity=quantity,
        steps=tuple(steps),
        seconds=tuple(mean([seconds for _, seconds in point]) or 0.0 for point in points),
        mean=tuple(mean([value for value, _ in point]) or 0.0 for point in points),
        low=tuple(min(value for value, _ in point) for point in points),
        high=tuple(max(value for value, _ in point) for point in points),
        runs=tuple(len(point) for point in points),
    )
