"""How figures and names are written, the same in the page, the exports and the terminal.

Knows numbers, units and characters. Does not know what is measured.
"""

import hashlib
import math
import re
import unicodedata
from collections.abc import Sequence

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

SLUG_LENGTH = 40
FOLDER_DIGITS = 8
"""Of a sha256, at the end of a name that alone would not be unique."""
MISSING = "–"
"""What stands where there is no figure."""
MINUS = "−"


def clean(text: str) -> str:
    """Replace what no document may hold: control characters, lone surrogates, noncharacters."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def clip(text: str, length: int = 120) -> str:
    """Cut a long text and say that it was cut."""
    if len(text) <= length:
        return text
    return f"{text[: length - 1].rstrip()}… (cut, {len(text):,} characters)"


def short(text: str, length: int = 22) -> str:
    """Cut a name for a place inside a drawing, without a word about it."""
    return text if len(text) <= length else text[: length - 1] + "…"


def slug(text: str) -> str:
    """Return a name that is safe in a file name and in an ``id``; it need not be unique."""
    return _hyphenated(text)[:SLUG_LENGTH] or "unnamed"


def folder_name(text: str) -> str:
    """Return a name for a folder; one that is too long ends with digits of the text's sha256.

    What has such digits already, behind a slug, keeps them.
    """
    whole = _hyphenated(text)
    if len(whole) <= SLUG_LENGTH + 1 + FOLDER_DIGITS:
        return whole or "unnamed"
    digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:FOLDER_DIGITS]
    return f"{whole[:SLUG_LENGTH].strip('-')}-{digits}"


def _hyphenated(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


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
    return f"{_trim(real(100 * value, 9))} %"


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
            return _trim(real(value / size, digits)) + letter
    return _trim(real(value, digits))


def tick(value: float) -> str:
    """Write a value on an axis as shortly as it can be said."""
    if value != 0 and abs(value) >= 1000:
        return compact(value).replace(" ", "")
    return _trim(real(value, 6)) if value else "0"


def tick_bytes(value: float) -> str:
    """Write a number of bytes on an axis."""
    return data_size(value)


_BINARY = (
    (2**60, "EiB"),
    (2**50, "PiB"),
    (2**40, "TiB"),
    (2**30, "GiB"),
    (2**20, "MiB"),
    (2**10, "KiB"),
)
_DECIMAL = ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def data_size(value: float | None, digits: int = 3, *, decimal: bool = False) -> str:
    """Write a number of bytes in binary units, or in powers of ten."""
    if value is None or not math.isfinite(value):
        return real(value)
    for size, unit in _DECIMAL if decimal else _BINARY:
        if abs(value) >= size:
            return f"{_trim(real(value / size, digits))} {unit}"
    return f"{_trim(real(value, digits))} B"


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


def _trim(written: str) -> str:
    return written.rstrip("0").rstrip(".") if "." in written else written


def listed(names: list[str], last: str = "and") -> str:
    """Join names as in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things, with the noun in the right form."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


_MARKS = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_{}[]<>#|~$"} | {"\n": " ", "\r": " ", "&": "&amp;"}
)


def markdown(text: str) -> str:
    """Write a text so that Markdown shows it as it is, on one line."""
    return clean(text).translate(_MARKS)


def typed_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as the command line takes them: ``0-7``, or ``1,3,5``."""
    ordered = sorted(seeds)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(seed) for seed in seeds)
