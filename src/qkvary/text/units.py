"""How amounts with a unit are written: bytes, tokens, durations."""

import math

from qkvary.text.numbers import real, trim, whole

_BINARY = (
    (2**60, "EiB"),
    (2**50, "PiB"),
    (2**40, "TiB"),
    (2**30, "GiB"),
    (2**20, "MiB"),
    (2**10, "KiB"),
)
_DECIMAL = ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def tick_bytes(value: float) -> str:
    """Write a number of bytes on an axis."""
    return data_size(value)


def data_size(value: float | None, digits: int = 3, *, decimal: bool = False) -> str:
    """Write a number of bytes in binary units, or in powers of ten."""
    if value is None or not math.isfinite(value):
        return real(value)
    for size, unit in _DECIMAL if decimal else _BINARY:
        if abs(value) >= size:
            return f"{trim(real(value / size, digits))} {unit}"
    return f"{trim(real(value, digits))} B"


def tokens(number: float) -> str:
    """Write a number of tokens on an axis: 32k is 32,768."""
    for size, letter in ((2**40, "T"), (2**30, "G"), (2**20, "M"), (2**10, "k")):
        if number >= size and number % (size / 4) == 0:
            return f"{number / size:g}{letter}"
    return whole(number)


def duration(seconds: float | None, digits: int = 3) -> str:
    """Write a time in the unit a person would choose."""
    if seconds is None or not math.isfinite(seconds):
        return real(seconds)
    if round(seconds) >= 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes:02d} min"
    if round(seconds) >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    return (
        f"{real(seconds, digits)} s"
        if seconds >= 1 or seconds == 0
        else f"{real(seconds * 1000, digits)} ms"
    )
