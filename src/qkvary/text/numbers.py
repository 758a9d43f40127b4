"""Formats, reads and checks numbers: digits, percentages, counts, bytes, durations."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

from qkvary.text.names import short

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MISSING = "–"
MINUS = "−"
LARGEST_SEED = 2**63 - 1
"""The largest seed that every random number generator accepts."""


def perplexity(nats: float) -> float:
    """Return the exponential of a loss in nats, infinite from 700 nats on."""
    return math.exp(nats) if nats < 700 else math.inf


def ten_to_the(exponent: int) -> str:
    """Format a power of ten."""
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


def real(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """Format a number with significant digits, never in the form 1e-05."""
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
    """Format a number with a fixed number of decimals."""
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
    """Return the number of decimals that are needed to show two significant digits of a spread.

    For example, 0.034 needs 3 decimals, and 120 needs none.
    """
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
    """Format the change from ``base`` to ``value`` as a signed percentage."""
    if value == base:
        return "=" if base else ""
    return f"{trim(real(100 * (value / base - 1), 3, sign=True))} %" if base else "new"


def tick(value: float) -> str:
    """Format a number as the shortest tick label of an axis."""
    if value != 0 and abs(value) >= 1000:
        return compact(value).replace(" ", "")
    return trim(real(value, 6)) if value else "0"


def trim(written: str) -> str:
    """Remove trailing zeros after the decimal point."""
    return written.rstrip("0").rstrip(".") if "." in written else written


def check_number(name: str, value: object, *, low: float, high: float) -> None:
    """Check that a value is a finite number in a range."""
    number = value if isinstance(value, int | float) else math.nan
    # Written so that NaN is refused.
    if isinstance(value, bool) or not low <= number <= high or number == math.inf:
        limits = f"from {low:g} to {high:g}" if high < math.inf else f"finite and at least {low:g}"
        raise ValueError(f"expected {name} {limits}, got {value!r}")


def check_whole(name: str, value: object, *, low: int, high: int) -> None:
    """Check that a value is a whole number in a range."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"expected a whole number of at least {low} for {name}, got {value!r}")
    if value > high:
        raise ValueError(f"expected at most {high} for {name}, got {value}")


def check_seed(value: object) -> None:
    """Check that a value is a whole number that can be a random seed."""
    check_whole("seed", value, low=0, high=LARGEST_SEED)


# ---- numbers with units


_BINARY = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")
_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_FLOPS = {"flops": 1, "gflops": 10**9, "tflops": 10**12, "pflops": 10**15}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_GROUP = re.compile(r"(?<=[0-9])[,_](?=[0-9]{3}(?![0-9]))")
LARGEST_COUNT = 2**40
"""Maximum number of tokens or users. Larger numbers are refused as typing errors."""


def data_size(value: float | None, digits: int = 3) -> str:
    """Format a number of bytes in KiB, MiB and so on."""
    return scaled(value, 1024, _BINARY, digits)


def tokens(number: float) -> str:
    """Format a number of tokens for an axis, such as 32k for 32,768."""
    for size, letter in ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= size and number % (size / 4) == 0:
            return f"{number / size:g}{letter}"
    return whole(number)


_YEAR = 365.25 * 24 * 3600


def duration(seconds: float | None, digits: int = 3) -> str:
    """Format a duration in a suitable unit."""
    if seconds is None or not math.isfinite(seconds):
        return real(seconds)
    if seconds >= _YEAR:
        return f"{real(seconds / _YEAR, digits)} years"
    if round(seconds) >= 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours:,} h {minutes:02d} min"
    if round(seconds) >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    return (
        f"{real(seconds, digits)} s"
        if seconds >= 1 or seconds == 0
        else f"{real(seconds * 1000, digits)} ms"
    )


def parse_bytes(text: str) -> int:
    """Parse an amount of memory such as ``24GiB``, ``40GB`` or ``512MiB``."""
    return round(_parse(text, _BYTES, "memory such as 24GiB (2^30) or 40GB (10^9)"))


def parse_bandwidth(text: str) -> float:
    """Parse a memory bandwidth such as ``900GB/s``; the ``/s`` is optional."""
    return _parse(re.sub(r"/s$", "", text.strip()), _BYTES, "a bandwidth such as 900GB/s")


def parse_flops(text: str) -> float:
    """Parse a speed of matrix arithmetic in FLOPs per second, such as ``121TFLOPS``."""
    return _parse(
        re.sub(r"/s$", "", text.strip()), _FLOPS, "a speed of matrix arithmetic such as 121TFLOPS"
    )


def parse_count(text: str) -> int:
    """Parse a number of tokens: ``1024``, ``32k`` (32,768) or ``1M`` (1,048,576)."""
    match = re.fullmatch(r"([0-9]{1,15})([kKmM]?)", _ungroup(text))
    factor = 0 if match is None else {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if match is None or int(match[1]) * factor > LARGEST_COUNT:
        raise ValueError(
            f"expected a whole number such as 1024, 32k or 1M, got {short(text, 60)!r}"
        )
    return int(match[1]) * factor


@dataclass(frozen=True, slots=True)
class Reads:
    """An annotation with the function that converts a caller's argument.

    For example, such a function converts the text ``32k`` to the number 32,768.
    """

    read: Callable[[Any, str], Any]
    """Converts an argument. It also takes the name of the parameter, for error messages."""
    typed: Any = str
    """The type of the argument on the command line."""


def as_several(given: object) -> Iterable[object]:
    """Return the items of an iterable; a text, bytes or a mapping counts as one item."""
    if hasattr(given, "tolist"):
        # An array of NumPy or PyTorch, whose items are not Python numbers.
        given = cast("Any", given).tolist()
    is_one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable)
    return (given,) if is_one else cast("Iterable[object]", given)


def read_words(given: object, _name: str) -> tuple[str, ...]:
    """Return one or several words or numbers as text; strings are split at commas."""
    return tuple(part.strip() for one in as_several(given) for part in str(one).split(","))


def read_counts(given: object, name: str) -> tuple[int, ...]:
    """Return one or several counts, such as ``512,1k,4k``, without duplicates."""
    return tuple(dict.fromkeys(read_count(one, name) for one in read_words(given, name)))


def read_count(given: object, name: str, *, low: int = 1) -> int:
    """Return a number of tokens or users, parsing text such as ``32k``."""
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, str) and re.fullmatch("-[0-9]{1,15}", given):
        given = int(given)
    try:
        count = parse_count(given) if isinstance(given, str) else operator.index(cast("int", given))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except TypeError:
        count = None
    if count is None or isinstance(given, bool):
        raise ValueError(f"{name}: expected a whole number such as '32k', got {given!r}")
    if count < low:
        raise ValueError(f"{name}: expected at least {low}, got {count}")
    if count > LARGEST_COUNT:
        raise ValueError(
            f"{name}: expected a whole number of at most {LARGEST_COUNT:,}, got {count:,}"
        )
    return count


def read_share(given: object, name: str) -> float:
    """Return a share, given as a number or as text such as ``10%``."""
    text = str(given).strip()
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", text)
    value = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= value <= 1:
        found = text[:60] if isinstance(given, str) else given
        hint = f"; did you mean {text}%?" if 1 < value <= 100 and "%" not in text else ""
        raise ValueError(f"{name}: expected a share such as 10% or 0.1, got {found!r}{hint}")
    return value


Count = Annotated[int, Reads(read_count)]
"""A number of tokens, sequences or users. It may be text such as ``32k`` (32,768)."""
Counts = Annotated[tuple[int, ...], Reads(read_counts, typed=tuple[str, ...])]
CountFromZero = Annotated[int, Reads(partial(read_count, low=0))]
Share = Annotated[float, Reads(read_share)]
"""A fraction. It may be text such as ``10%``."""


def _parse(text: str, units: dict[str, int], expected: str) -> float:
    match = _AMOUNT.fullmatch(_ungroup(text.strip()))
    factor = None if match is None else units.get(match[2].lower())
    if match is None or factor is None or not float(match[1]) * factor >= 1:
        raise ValueError(f"expected {expected}, got {text[:60]!r}")
    if float(match[1]) * factor > 1e30:
        raise ValueError(f"expected {expected} of a plausible size, got {text[:60]!r}")
    return float(match[1]) * factor


def _ungroup(text: str) -> str:
    """Remove thousands separators; a decimal comma stays."""
    return _GROUP.sub("", text)
