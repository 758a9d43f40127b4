"""Medians of few times measured in turns, with intervals that assume nothing about their shape.

Times have tails that no normal distribution has, so that means and t intervals say little of them.
Never imports torch, numpy or scipy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True, slots=True)
class Median:
    """A median over rounds, with its interval."""

    value: float
    """The median."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


def median_with_interval(values: Sequence[float]) -> Median:
    """The median and the order statistics around it that enclose it with at least ``LEVEL``.

    Fewer than six values cannot: their whole range is given.
    """
    ordered, count = sorted(values), len(values)
    below, tail = 0, 1
    while tail / 2**count <= (1.0 - LEVEL) / 2 and below < count // 2:
        below += 1
        tail += math.comb(count, below)
    cut = max(0, below - 1)
    return Median(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Median:
    """The median of theirs over ours, round by round: how many times faster ours are.

    Raises:
        ValueError: if there are not as many of each.
    """
    return median_with_interval([b / a for a, b in zip(ours, theirs, strict=True)])
