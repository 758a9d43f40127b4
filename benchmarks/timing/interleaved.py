"""Timing of alternatives that take turns, and the one line of JSON that a benchmark prints.

All alternatives run in every round, each round in another order, so that a machine that gets slower
makes all of them slower. Ratios are taken within a round; their median is reported with an interval
that holds at least 95 % whatever their distribution. Times are CPU time of this process unless a
benchmark brings its own clock.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from timing.medians import Median, median_ratio, median_with_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a benchmark measures."""

    rounds: int
    """Turns of each alternative."""
    turn_seconds: float
    """Length of a turn; what is faster is repeated."""


Ratio = Median
"""A ratio is a median over rounds too."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call: one number per alternative and round."""

    seconds: Mapping[str, Sequence[float]]

    @property
    def medians(self) -> dict[str, float]:
        """The median of each alternative."""
        return {name: statistics.median(values) for name, values in self.seconds.items()}

    def fastest(self, *names: str) -> str:
        """The one of ``names`` with the lowest median."""
        medians = self.medians
        return min(names, key=lambda name: medians[name])

    def over(self, name: str, limit: float) -> Ratio:
        """Seconds of ``name`` over a number of seconds."""
        return median_with_interval([seconds / limit for seconds in self.seconds[name]])

    def ratio(self, name: str, other: str) -> Ratio:
        """Seconds of ``name`` over seconds of ``other``, within each round."""
        return median_ratio(self.seconds[other], self.seconds[name])


def read_options(
    devices: Sequence[str] = ("cpu",), paths: Mapping[str, str] = MappingProxyType({})
) -> Namespace:
    """The command line of every benchmark: ``--quick`` shows that it works and measures little.

    Args:
        devices: Where it can run, for ``--device``; the first if nothing is said.
        paths: Options of its own that take a path, and what each is.
    """
    parser = ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--device", choices=devices, default=devices[0], help="where to measure")
    for name, what in paths.items():
        parser.add_argument(name, type=Path, help=what)
    return parser.parse_args()


def read_quick() -> bool:
    """Whether few and short rounds are asked for."""
    return bool(read_options().quick)


def read_effort(*, full: Effort, quick: Effort) -> Effort:
    """The effort that the command line asks for."""
    return quick if read_quick() else full


def take_turns(
    alternatives: Mapping[str, Callable[[], object]],
    effort: Effort,
    *,
    clock: Callable[[], float] = time.process_time,
) -> Timing:
    """Time every alternative in every round.

    Args:
        alternatives: What to call, by name.
        effort: How often and how long.
        clock: Reads seconds.
    """
    repeats: dict[str, int] = {}
    for name, call in alternatives.items():
        call()
        once = _time(call, 1, clock)
        repeats[name] = max(1, round(effort.turn_seconds / max(once, 1e-6)))
    names = list(alternatives)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(effort.rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            seconds[name].append(_time(alternatives[name], repeats[name], clock))
    return Timing(seconds)


def print_case(
    benchmark: str,
    case: str,
    ratio: Ratio,
    *,
    goal: float,
    better: Literal["higher", "lower"],
    timing: Timing,
    **details: Any,
) -> None:
    """Print one line. ``met`` is false where the whole interval lies beyond the goal.

    Args:
        benchmark: Which file.
        case: What was compared, at which sizes.
        ratio: The result.
        goal: What the result should reach.
        better: On which side of the goal it should lie.
        timing: Where it comes from.
        **details: Whatever else the line should say.
    """
    met = ratio.high >= goal if better == "higher" else ratio.low <= goal
    line = {
        "benchmark": benchmark,
        "case": case,
        "ratio": _rounded(ratio.value),
        "goal": goal,
        "better": better,
        "met": met,
        "interval": [_rounded(ratio.low), _rounded(ratio.high)],
        "rounds": len(next(iter(timing.seconds.values()))),
        "medians_seconds": {name: _rounded(value) for name, value in timing.medians.items()},
        **details,
        "versions": versions(),
    }
    print(json.dumps(line), flush=True)


def versions() -> dict[str, str]:
    """Of what is measured and what it is measured against, as far as installed."""
    found = {"python": platform.python_version()}
    for name in ("qkvary", "torch", "transformers", "x-transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _time(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
