"""Functions that format names and lists.

They clip long texts, join lists, write counts with their nouns, and escape text for files and
Markdown.
"""

import difflib
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence

_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
SLUG_LENGTH = 40
FOLDER_DIGITS = 8
"""Number of hexadecimal digits of a sha256 that make the name of a folder unique."""
_MARKS = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_{}[]<>#|~$"} | {"\n": " ", "\r": " ", "&": "&amp;"}
)


def clean(text: str) -> str:
    """Replace control characters, lone surrogates and noncharacters."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def printable(text: str) -> str:
    """Return the text with control characters and lone surrogates written as escapes."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def clip(text: str, length: int = 120) -> str:
    """Shorten a long text, and append a note with its original length."""
    if len(text) <= length:
        return text
    return f"{text[: length - 1].rstrip()}… (cut, {len(text):,} characters)"


def short(text: str, length: int = 22) -> str:
    """Shorten a name with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def brief(value: object, length: int = 60) -> str:
    """Return the ``repr`` of a value or, if that is long, the name of its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    said = repr(value)
    return said if len(said) <= length and said.isprintable() else f"a {type(value).__name__}"


def slug(text: str) -> str:
    """Convert a text to a name that is safe in files and as an ``id``. It may not be unique."""
    return _hyphenated(text)[:SLUG_LENGTH] or "unnamed"


def folder_name(text: str) -> str:
    """Convert a text to the name of a folder. Long names are cut, and end with a digest."""
    whole = _hyphenated(text)
    if len(whole) <= SLUG_LENGTH + 1 + FOLDER_DIGITS:
        return whole or "unnamed"
    digits = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:FOLDER_DIGITS]
    return f"{whole[:SLUG_LENGTH].strip('-')}-{digits}"


def _hyphenated(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")


def listed(names: Sequence[str], last: str = "and") -> str:
    """Join names with commas and a last word, as in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def note_windows(asked: int, used: int, reason: str) -> tuple[str, ...]:
    """Return a note if windows are shorter than the user asked for, otherwise nothing."""
    note = f"windows have {used:,} tokens instead of {asked:,}, because {reason}"
    return (note,) if used < asked else ()


def spell(name: str) -> str:
    """Return a name in lower case, with hyphens for blanks and underscores, for comparisons."""
    return re.sub(r"[\s_]+", "-", name.strip().casefold())


def find_name(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a name denotes, or ``None``.

    The comparison ignores case, and treats blanks and underscores as hyphens.
    """
    wanted = spell(name)
    return next((choice for choice in choices if spell(choice) == wanted), None)


def near_names(
    name: str, choices: Iterable[str], *, most: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Return the choices nearest to a misspelled name, best first.

    The comparison ignores case, and treats blanks and underscores as hyphens.
    """
    spelled = {spell(choice): choice for choice in choices}
    near = difflib.get_close_matches(spell(name[:60]), spelled, n=most, cutoff=cutoff)
    return [spelled[match] for match in near]


def suggest(text: str, choices: Iterable[str]) -> str:
    """Suggest the choice nearest to a wrong name, or list all choices."""
    known = list(choices)
    near = near_names(text, known)
    return f"did you mean {near[0]}?" if near else f"choices: {', '.join(known)}"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun in singular or plural."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def markdown(text: str) -> str:
    """Escape a text for one line of Markdown."""
    return clean(text).translate(_MARKS)


def typed_seeds(seeds: Sequence[int]) -> str:
    """Format seeds as they are typed on the command line: ``0-7`` or ``1,3,5``."""
    ordered = sorted(seeds)
    if len(ordered) > 1 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(seed) for seed in seeds)
