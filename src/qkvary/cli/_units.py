"""Amounts as people type and read them: bytes, rates, shares; one system of units at a time."""

import math
import re

from qkvary.storage.errors import UsageError

_BYTES = {
    "": 1,
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
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_GROUP = re.compile(r"(?<=[0-9])[,_](?=[0-9]{3}(?![0-9]))")


def ungroup(text: str) -> str:
    """The text without the marks between groups of three digits; a decimal comma stays."""
    return _GROUP.sub("", text)


def parse_bytes(text: str) -> int:
    """Read an amount of memory such as ``24GiB``, ``40GB`` or ``512MiB``.

    Raises:
        UsageError: for anything else; a bare G could mean either and is refused.
    """
    return round(_parse(text, _BYTES, "memory such as 24GiB (2^30) or 40GB (10^9)"))


def parse_bandwidth(text: str) -> float:
    """Read a rate of memory such as ``900GB/s``; the ``/s`` may be left out.

    Raises:
        UsageError: for anything else.
    """
    return _parse(re.sub(r"/s$", "", text.strip()), _BYTES, "a bandwidth such as 900GB/s")


def parse_flops(text: str) -> float:
    """Read a rate of arithmetic such as ``121TFLOPS``.

    Raises:
        UsageError: for anything else.
    """
    return _parse(re.sub(r"/s$", "", text.strip()), _FLOPS, "a matrix rate such as 121TFLOPS")


def parse_share(text: str) -> float:
    """Read a share such as ``10%`` or ``0.1``.

    Raises:
        UsageError: for anything that is not a share.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(%?)", text.strip())
    value = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= value <= 1:
        raise UsageError(f"expected a share such as 10% or 0.1, got {text[:60]!r}")
    return value


def format_bytes(amount: float | None, *, decimal: bool = False) -> str:
    """An amount of memory in the largest unit that leaves at least 1, or a dash for none."""
    if amount is None:
        return "-"
    step, names = (1000, _DECIMAL) if decimal else (1024, _BINARY)
    value, place = float(amount), 0
    # What would be rounded to a whole step is one of the next unit.
    while abs(value) >= (step if place == 0 else step - 0.5) and place < len(names) - 1:
        value, place = value / step, place + 1
    if place == 0:
        return f"{value:,.4g} {names[0]}" if value % 1 else f"{value:,.0f} {names[0]}"
    digits = 2 if value < 99.995 else 1 if value < 999.95 else 0
    return f"{value:.{digits}f} {names[place]}"


def format_share(share: float) -> str:
    """A share in percent, with the digits that it was given with."""
    return f"{100 * share:.10g}%"


def format_price(amount: float | None) -> str:
    """An amount of money, in hundredths where it is not whole, or a dash for none."""
    if amount is None or not math.isfinite(amount):
        return "-"
    return f"{amount:,.0f}" if amount == int(amount) else f"{amount:,.2f}"


def format_count(amount: float | None) -> str:
    """A large number in thousands (k), millions (M), billions (G) or trillions (T)."""
    if amount is None:
        return "-"
    value, place = float(amount), 0
    names = ("", " k", " M", " G", " T", " P", " E")
    while abs(value) >= 999.95 and place < len(names) - 1:
        value, place = value / 1000, place + 1
    return f"{value:.0f}" if place == 0 else f"{value:.4g}{names[place]}"


def format_tokens(amount: int | None) -> str:
    """Tokens with thousands separated; no limit where there is none."""
    return "no limit" if amount is None else f"{amount:,}"


def format_change(value: float, base: float) -> str:
    """A difference to a base in percent, with its sign."""
    if base == 0:
        return "" if value == 0 else "new"
    change = 100 * (value / base - 1)
    if value == base:
        return "="
    return f"{change:+,.0f} %" if abs(change) >= 999.5 else f"{change:+.3g} %"


def _parse(text: str, units: dict[str, int], expected: str) -> float:
    match = _AMOUNT.fullmatch(ungroup(text.strip()))
    factor = None if match is None else units.get(match[2].lower())
    if match is None or factor is None or not float(match[1]) * factor >= 1:
        raise UsageError(f"expected {expected}, got {text[:60]!r}")
    if float(match[1]) * factor > 1e30:
        raise UsageError(f"expected {expected} of a plausible size, got {text[:60]!r}")
    return float(match[1]) * factor
