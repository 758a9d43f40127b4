"""A printed figure as what it is: a number known to its last printed digit.

Knows nothing of where a figure comes from. Never imports torch.
"""

from __future__ import annotations

import math
import re

from qkvary.literature.figures import PublishedFigure

_NUMBER = re.compile(r"[-+]?(?P<whole>\d[\d,]*)(?:\.(?P<decimals>\d+))?")
_RANGE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)%")
_ABOUT = ("~", "about ")
_SLACK = 1e-9
"""What floating point may add to a distance, relative to a step."""

COARSE = 0.2
"""Percentage points of an interval from which on one decimal says enough."""


def printed_step(figure: PublishedFigure) -> float:
    """The unit of the last printed digit, in the unit of the figure's value: 0.1 for ``+3.1%``.

    ``423k`` with the value 423,000 has the step 1,000. Words that stand for a number have 1.
    """
    match = _NUMBER.search(figure.printed)
    if match is None:
        return 1.0
    decimals = match["decimals"] or ""
    number = float(f"{match['whole'].replace(',', '')}.{decimals or '0'}")
    scale = abs(figure.value or 0.0) / number if number and figure.value else 1.0
    return float(f"{scale:.6g}") * 10.0 ** -len(decimals)


def printed_interval(figure: PublishedFigure) -> tuple[float, float]:
    """The numbers that are printed as this figure.

    Raises:
        ValueError: for a figure without a number.
    """
    if figure.value is None:
        raise ValueError(f"expected a figure with a number, got {figure.printed!r}")
    half = printed_step(figure) / 2
    return figure.value - half, figure.value + half


def coarse_step(figure: PublishedFigure) -> float:
    """The step if the zeros at the end of a whole number were not measured: 100 for ``5,900``.

    Two digits always count, and one where the print says "about": 10 for ``~30%``.
    """
    match = _NUMBER.search(figure.printed)
    if match is None or match["decimals"]:
        return printed_step(figure)
    digits = match["whole"].replace(",", "")
    zeros = len(digits) - len(digits.rstrip("0"))
    kept = 1 if figure.printed.startswith(_ABOUT) else 2
    return printed_step(figure) * 10.0 ** max(0, min(zeros, len(digits) - kept))


def printed_range(figure: PublishedFigure) -> tuple[float, float] | None:
    """The two ends of a figure such as ``40-50%``; ``None`` for any other."""
    match = _RANGE.search(figure.printed)
    return (float(match[1]), float(match[2])) if match else None


def meant_decimals(low: float, high: float) -> int:
    """Decimals that a percentage is worth writing with when its interval is as wide as this one."""
    return 1 if high - low >= COARSE else 2


def rounds_to(number: float, printed: float, step: float) -> bool:
    """Whether a number is printed so; a number half-way between two figures is printed as either.

    Args:
        number: The exact number.
        printed: The printed one.
        step: The unit of the last printed digit.
    """
    return abs(number - printed) <= step * (0.5 + _SLACK)


def truncates_to(number: float, printed: float, step: float) -> bool:
    """Whether a number is printed so when the digits after the last one are cut off."""
    cut = math.trunc(number / step + math.copysign(_SLACK, number)) * step
    return abs(cut - printed) <= step * _SLACK * 10


def rounds_twice_to(number: float, printed: float, step: float) -> bool:
    """Whether a number is printed so when it is rounded to one or two digits more before."""
    for finer in (step / 10, step / 100):
        once = _half_up(number, finer)
        if abs(_half_up(once, step) - printed) <= step * _SLACK * 10:
            return True
    return False


def _half_up(number: float, step: float) -> float:
    return math.copysign(math.floor(abs(number) / step + 0.5 + _SLACK) * step, number)
