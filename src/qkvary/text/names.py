"""How names and lists are written: cut, listed, counted, made safe for files and Markdown."""

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SLUG_LENGTH = 40
FOLDER_DIGITS = 8
"""Of a sha256, at the end of a name that alone would not be unique."""
_MARKS = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_{}[]<>#|~$"} | {"\n": " ", "\r": " ", "&": "&amp;"}
)


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


def listed(names: Sequence[str], last: str = "and") -> str:
    """Join names as in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def suggest(text: str, choices: Iterable[str]) -> str:
    """Say which of some names a wrong one is near to, or all of them."""
    known = list(choices)
    near = difflib.get_close_matches(text, known, n=1)
    return f"did you mean {near[0]}?" if near else f"choices: {', '.join(known)}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things, with the noun in the right form."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def markdown(text: str) -> str:
    """Write a text so that Markdown shows it as it is, on one line."""
    return clean(text).translate(_MARKS)


def typed_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as the command line takes them: ``0-7``, or ``1,3,5``."""
    ordered = sorted(seeds)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(seed) for seed in seeds)
