"""Printed numbers, which are known only up to the last printed digit."""

import math
import re
from typing import Protocol


class PrintedFigure(Protocol):
    """A number as it is printed."""

    @property
    def printed(self) -> str:
        """The printed text, such as ``+3.1%``."""
        ...

    @property
    def value(self) -> float | None:
        """The number's value; ``None`` for words and formulas."""
        ...


_NUMBER = re.compile(r"[-+]?(?P<whole>\d[\d,]*)(?:\.(?P<decimals>\d+))?")
_RANGE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)%")
_ABOUT = ("~", "about ")
_SLACK = 1e-9
"""Tolerance for floating-point errors, relative to a rounding step."""

WIDE_INTERVAL = 0.2
"""Minimum width, in percentage points, of intervals with one decimal; others have two."""


def printed_step(figure: PrintedFigure) -> float:
    """Return the step between neighbouring printed numbers, such as 0.1 for ``+3.1%``.

    The step of ``423k``, whose value is 423,000, is 1,000. A number in words has the step 1.
    """
    match = _NUMBER.search(figure.printed)
    if match is None:
        return 1.0
    decimals = match["decimals"] or ""
    number = float(f"{match['whole'].replace(',', '')}.{decimals or '0'}")
    scale = abs(figure.value or 0.0) / number if number and figure.value else 1.0
    return float(f"{scale:.6g}") * 10.0 ** -len(decimals)


def printed_interval(figure: PrintedFigure) -> tuple[float, float]:
    """Return the interval of numbers that round to this printed number."""
    if figure.value is None:
        raise ValueError(f"expected a printed number, got {figure.printed!r}")
    half = printed_step(figure) / 2
    return figure.value - half, figure.value + half


def coarse_step(figure: PrintedFigure) -> float:
    """Return the step of a number whose trailing zeros are rounded: 100 for ``5,900``.

    The first two digits always count as significant. After "about" or "~", only the first digit
    does, so that ``~30%`` has the step 10.
    """
    match = _NUMBER.search(figure.printed)
    if match is None or match["decimals"]:
        return printed_step(figure)
    digits = match["whole"].replace(",", "")
    zeros = len(digits) - len(digits.rstrip("0"))
    kept = 1 if figure.printed.startswith(_ABOUT) else 2
    return printed_step(figure) * 10.0 ** max(0, min(zeros, len(digits) - kept))


def printed_range(figure: PrintedFigure) -> tuple[float, float] | None:
    """Return the ends of a range such as ``40-50%``; ``None`` for other texts."""
    match = _RANGE.search(figure.printed)
    return (float(match[1]), float(match[2])) if match else None


def useful_decimals(low: float, high: float) -> int:
    """Return the number of decimals to print for a percentage with this interval."""
    return 1 if high - low >= WIDE_INTERVAL else 2


def rounds_to(number: float, printed: float, step: float) -> bool:
    """Return whether a number rounds to the printed number. Ties may round either way."""
    return abs(number - printed) <= step * (0.5 + _SLACK)


def truncates_to(number: float, printed: float, step: float) -> bool:
    """Return whether truncating a number gives the printed number."""
    cut = math.trunc(number / step + math.copysign(_SLACK, number)) * step
    return abs(cut - printed) <= step * _SLACK * 10


def rounds_twice_to(number: float, printed: float, step: float) -> bool:
    """Return whether a number that is rounded twice gives the printed number.

    The first rounding keeps one or two more digits than the printed number has.
    """
    for finer in (step / 10, step / 100):
        once = _half_up(number, finer)
        if abs(_half_up(once, step) - printed) <= step * _SLACK * 10:
            return True
    return False


def _half_up(number: float, step: float) -> float:
    return math.copysign(math.floor(abs(number) / step + 0.5 + _SLACK) * step, number)
