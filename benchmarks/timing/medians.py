"""Medians of few timings, with distribution-free intervals. Never imports torch, numpy or scipy.

Timings have heavy tails, so that means and t intervals say little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""The confidence level of the intervals."""


@dataclass(frozen=True, slots=True)
class Median:
    """A median over rounds, with its interval."""

    value: float
    """The median."""
    low: float
    """The lower end."""
    high: float
    """The upper end."""


def median_with_interval(values: Sequence[float]) -> Median:
    """Return the median and order statistics that enclose it with confidence ``LEVEL``.

    With fewer than six values, the interval is their whole range.
    """
    ordered, count = sorted(values), len(values)
    below, tail = 0, 1
    while tail / 2**count <= (1.0 - LEVEL) / 2 and below < count // 2:
        below += 1
        tail += math.comb(count, below)
    cut = max(0, below - 1)
    return Median(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Median:
    """Return the median of theirs over ours per round: the speedup of ours.

    Raises:
        ValueError: if the numbers of rounds differ.
    """
    return median_with_interval([b / a for a, b in zip(ours, theirs, strict=True)])
