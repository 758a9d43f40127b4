"""How numbers are written: significant digits, decimals, percentages, counts."""

import math

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
    """Write a large count with k, M, G or T."""
    if value is None or not math.isfinite(value):
        return real(value)
    for size, letter in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.9995:
            return trim(real(value / size, digits)) + letter
    return trim(real(value, digits))


def tick(value: float) -> str:
    """Write a value on an axis as shortly as it can be said."""
    if value != 0 and abs(value) >= 1000:
        return compact(value).replace(" ", "")
    return trim(real(value, 6)) if value else "0"


def trim(written: str) -> str:
    """Cut the zeros behind a decimal point."""
    return written.rstrip("0").rstrip(".") if "." in written else written
