"""Formats and parses amounts with units: bytes, rates, shares, tokens, durations."""

import math
import re
from typing import overload

from qkvary.text.names import short
from qkvary.text.numbers import real, scaled, whole

_BINARY = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")
_DECIMAL = (" B", " kB", " MB", " GB", " TB", " PB", " EB")
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
"""Maximum number of tokens or users; more is a typing error."""


def data_size(value: float | None, digits: int = 3, *, decimal: bool = False) -> str:
    """Format a number of bytes in binary or decimal units."""
    step, units = (1000, _DECIMAL) if decimal else (1024, _BINARY)
    return scaled(value, step, units, digits)


def tokens(number: float) -> str:
    """Format a number of tokens on an axis: 32k is 32,768."""
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
    """Parse a rate such as ``121TFLOPS``."""
    return _parse(re.sub(r"/s$", "", text.strip()), _FLOPS, "a matrix rate such as 121TFLOPS")


def parse_share(text: str) -> float:
    """Parse a share such as ``10%`` or ``0.1``."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", text.strip())
    value = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= value <= 1:
        raise ValueError(f"expected a share such as 10% or 0.1, got {text[:60]!r}")
    return value


def parse_count(text: str) -> int:
    """Parse a number of tokens: ``1024``, ``32k`` (32,768) or ``1M`` (1,048,576)."""
    match = re.fullmatch(r"([0-9]{1,15})([kKmM]?)", _ungroup(text))
    factor = 0 if match is None else {"": 1, "k": 2**10, "m": 2**20}[match[2].lower()]
    if match is None or int(match[1]) * factor > LARGEST_COUNT:
        raise ValueError(
            f"expected a whole number such as 1024, 32k or 1M, got {short(text, 60)!r}"
        )
    return int(match[1]) * factor


@overload
def read_count(given: None, name: str, *, low: int = 1) -> None: ...
@overload
def read_count(given: int | str, name: str, *, low: int = 1) -> int: ...
@overload
def read_count(given: int | str | None, name: str, *, low: int = 1) -> int | None: ...
def read_count(given: object, name: str, *, low: int = 1) -> int | None:
    """Return a number of tokens or users, also from text such as ``32k``; ``None`` for ``None``."""
    if given is None:
        return None
    try:
        count = parse_count(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if isinstance(count, bool) or not isinstance(count, int):
        # All bad input is a ValueError.
        raise ValueError(  # noqa: TRY004
            f"{name}: expected a whole number such as '32k', got {given!r}"
        )
    if count < low:
        raise ValueError(f"{name}: expected at least {low}, got {count}")
    if count > LARGEST_COUNT:
        raise ValueError(
            f"{name}: expected a whole number of at most {LARGEST_COUNT:,}, got {count:,}"
        )
    return count


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
