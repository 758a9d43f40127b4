"""Formats numbers (digits, decimals, percentages, counts), and checks those that callers give."""

import math
from collections.abc import Sequence

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MISSING = "–"
MINUS = "−"
LARGEST_SEED = 2**63 - 1
"""The largest seed that every random number generator accepts."""


def ten_to_the(exponent: int) -> str:
    """Write a power of ten."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def real(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """Format a number with significant digits, never as 1e-05."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -4 or exponent > 8:
        mantissa = f"{value / 10**exponent:.{digits - 1}f}"
        written = f"{mantissa} × {ten_to_the(exponent)}"
    else:
        written = f"{value:,.{max(digits - 1 - exponent, 0)}f}"
    return _signed(written, value, sign)


def fixed(value: float | None, decimals: int = 3, sign: bool = False) -> str:
    """Format a number with fixed decimals."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return real(value)
    written = f"{value:,.{decimals}f}"
    zero = float(written.replace(",", "")) == 0
    return _signed(written.replace("-", "") if zero else written, 0 if zero else value, sign)


def interval(low: float | None, high: float | None, decimals: int = 3, sign: bool = False) -> str:
    """Format an interval as ``[0.05, 0.19]``."""
    return f"[{fixed(low, decimals, sign)}, {fixed(high, decimals, sign)}]"


def decimals_of(spread: float | None) -> int:
    """Return the decimals that show two digits of a spread: 3 for 0.034, 0 for 120."""
    if spread is None or not math.isfinite(spread) or spread <= 0:
        return 3
    return min(6, max(0, 1 - math.floor(math.log10(spread))))


def _signed(written: str, value: float, sign: bool) -> str:
    if value < 0:
        return written.replace("-", MINUS, 1)
    return f"+{written}" if sign and value > 0 else written


def percent(share: float | None, decimals: int = 1, sign: bool = False) -> str:
    """Format a share as a percentage."""
    return MISSING if share is None else fixed(share * 100, decimals, sign) + " %"


def share(value: float) -> str:
    """Format a share as a percentage without trailing zeros."""
    return f"{trim(real(100 * value, 9))} %"


def money(value: float | None) -> str:
    """Format an amount of money, with two decimals if it is not whole."""
    return whole(value) if value is None or value % 1 == 0 else fixed(value, 2)


def whole(value: float | None) -> str:
    """Format a count with thousands separators."""
    if value is None:
        return MISSING
    if isinstance(value, int):
        # All digits: a float has only 16.
        return f"{value:,}".replace("-", MINUS)
    return f"{value:,.0f}".replace("-", MINUS) if math.isfinite(value) else real(value)


def compact(value: float | None, digits: int = 3) -> str:
    """Format a large count with k, M, G, T, P or E."""
    return scaled(value, 1000, ("", " k", " M", " G", " T", " P", " E"), digits)


def scaled(value: float | None, step: int, units: Sequence[str], digits: int) -> str:
    """Format a number in the largest unit in which it is at least 1; units differ by ``step``."""
    if value is None or not math.isfinite(value):
        return real(value)
    index, decimals = 0, max(digits - len(str(step - 1)), 0)
    # A value that rounds to a whole step uses the next unit.
    while index < len(units) - 1 and round(abs(value) / step**index, decimals) >= step:
        index += 1
    return trim(real(value / step**index, digits)) + units[index]


def change(value: float, base: float) -> str:
    """Format a relative difference to a base as a signed percentage."""
    if value == base:
        return "=" if base else ""
    return f"{trim(real(100 * (value / base - 1), 3, sign=True))} %" if base else "new"


def tick(value: float) -> str:
    """Format a tick label as short as possible."""
    if value != 0 and abs(value) >= 1000:
        return compact(value).replace(" ", "")
    return trim(real(value, 6)) if value else "0"


def trim(written: str) -> str:
    """Remove trailing zeros after the decimal point."""
    return written.rstrip("0").rstrip(".") if "." in written else written


def check_number(name: str, value: object, *, low: float, high: float) -> None:
    """Refuse anything but a finite number in a range."""
    number = value if isinstance(value, int | float) else math.nan
    # Written so that NaN is refused.
    if isinstance(value, bool) or not low <= number <= high or number == math.inf:
        most = f" to {high:g}" if high < math.inf else " and finite"
        raise ValueError(f"expected {name} from {low:g}{most}, got {value!r}")


def check_whole(name: str, value: object, *, low: int, high: int) -> None:
    """Refuse anything but a whole number in a range."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"expected a whole number of at least {low} for {name}, got {value!r}")
    if value > high:
        raise ValueError(f"expected at most {high} for {name}, got {value}")


def check_seed(value: object) -> None:
    """Refuse anything but a seed."""
    check_whole("seed", value, low=0, high=LARGEST_SEED)
