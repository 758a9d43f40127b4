"""Checks of numbers that callers give: their type and their range."""

import math

LARGEST_SEED = 2**63 - 1
"""The largest seed that every generator of random numbers takes."""


def check_number(name: str, value: object, *, low: float, high: float) -> None:
    """Refuse anything but a finite number in a range.

    Raises:
        ValueError: with the name and the range.
    """
    number = value if isinstance(value, int | float) else math.nan
    # Not "outside", which would accept NaN.
    if isinstance(value, bool) or not low <= number <= high or number == math.inf:
        most = f" to {high:g}" if high < math.inf else " and finite"
        raise ValueError(f"expected {name} from {low:g}{most}, got {value!r}")


def check_whole(name: str, value: object, *, low: int, high: int) -> None:
    """Refuse anything but a whole number in a range.

    Raises:
        ValueError: with the name and the bound.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"expected a whole number of at least {low} for {name}, got {value!r}")
    if value > high:
        raise ValueError(f"expected at most {high} for {name}, got {value}")


def check_seed(value: object) -> None:
    """Refuse anything but a seed.

    Raises:
        ValueError: as :func:`check_whole`.
    """
    check_whole("seed", value, low=0, high=LARGEST_SEED)
