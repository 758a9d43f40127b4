"""How numbers are written: significant digits, decimals, percentages, counts."""

import math
from collections.abc import Sequence

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MISSING = "–"
"""What stands where there is no figure."""
MINUS = "−"


def real(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """Write a number with so many significant digits, never in the form 1e-05."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -4 or exponent > 8:
        mantissa = f"{value / 10**exponent:.{digits - 1}f}"
        written = f"{mantissa} × 10{str(exponent).translate(_SUPERSCRIPTS)}"
    else:
        written = f"{value:,.{max(digits - 1 - exponent, 0)}f}"
    return _signed(written, value, sign)


def fixed(value: float | None, decimals: int = 3, sign: bool = False) -> str:
    """Write a number with so many decimals, for columns whose figures are compared."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return real(value)
    written = f"{value:,.{decimals}f}"
    zero = float(written.replace(",", "")) == 0
    return _signed(written.replace("-", "") if zero else written, 0 if zero else value, sign)


def interval(low: float | None, high: float | None, decimals: int = 3, sign: bool = False) -> str:
    """Write an interval as ``[0.05, 0.19]``."""
    return f"[{fixed(low, decimals, sign)}, {fixed(high, decimals, sign)}]"


def _signed(written: str, value: float, sign: bool) -> str:
    if value < 0:
        return written.replace("-", MINUS, 1)
    return f"+{written}" if sign and value > 0 else written


def percent(share: float | None, decimals: int = 1, sign: bool = False) -> str:
    """Write a share as a percentage."""
    return MISSING if share is None else fixed(share * 100, decimals, sign) + " %"


def share(value: float) -> str:
    """Write a share as a percentage with the digits that it was given with."""
    return f"{trim(real(100 * value, 9))} %"


def money(value: float | None) -> str:
    """Write an amount of money, in hundredths where it is not whole."""
    return whole(value) if value is None or value % 1 == 0 else fixed(value, 2)


def whole(value: float | None) -> str:
    """Write a count with separated thousands."""
    return (
        MISSING
        if value is None
        else (f"{value:,.0f}".replace("-", MINUS) if math.isfinite(value) else real(value))
    )


def compact(value: float | None, digits: int = 3) -> str:
    """Write a large count with k, M, G, T, P or E."""
    return scaled(value, 1000, ("", " k", " M", " G", " T", " P", " E"), digits)


def scaled(value: float | None, step: int, units: Sequence[str], digits: int) -> str:
    """Write a number in the largest of some units that leaves at least 1.

    Args:
        value: In the first unit.
        step: How many of a unit make one of the next.
        units: As they follow the number, the smallest first.
        digits: Significant digits; zeros behind the decimal point are cut.
    """
    if value is None or not math.isfinite(value):
        return real(value)
    place, decimals = 0, max(digits - len(str(step - 1)), 0)
    # What would be rounded to a whole step is one of the next unit.
    while place < len(units) - 1 and round(abs(value) / step**place, decimals) >= step:
        place += 1
    return trim(real(value / step**place, digits)) + units[place]


def change(value: float, base: float) -> str:
    """Write a difference to a base as a percentage, with its sign."""
    if value == base:
        return "=" if base else ""
    return f"{trim(real(100 * (value / base - 1), 3, sign=True))} %" if base else "new"


def tick(value: float) -> str:
    """Write a value on an axis as shortly as it can be said."""
    if value != 0 and abs(value) >= 1000:
        return compact(value).replace(" ", "")
    return trim(real(value, 6)) if value else "0"


def trim(written: str) -> str:
    """Cut the zeros behind a decimal point."""
    return written.rstrip("0").rstrip(".") if "." in written else written
