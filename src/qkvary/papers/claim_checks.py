"""Compares stored verdicts on claims with newly derived ones. Never imports torch."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import decode
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file

_ABSENT = "nothing"
"""Shown in messages for a value that is missing in one of two versions of a claim."""


def read_verdicts(path: Path) -> list[Mapping[str, Any]]:
    """Return the claims and verdicts in a JSON document that ``qkvary claims`` wrote earlier."""
    written = read_file(path, limit=MAX_SIDE_FILE_BYTES)
    try:
        content = decode(written)
        claims = cast("Any", content)["claims"]
        if all(
            isinstance(one["name"], str) and isinstance(one["findings"], list) for one in claims
        ):
            return claims
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedError(f"expected a JSON document of qkvary claims in {path}")


def find_wrong(
    stored: Sequence[Mapping[str, Any]], derived: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each claim that differs between the stored and the derived verdicts."""
    now = {str(one["name"]): one for one in derived}
    before = {str(one["name"]): one for one in stored}
    found: list[str] = []
    for name in dict.fromkeys((*before, *now)):
        if name not in now:
            found.append(f"{name} has a stored verdict, but is not a claim of any document")
        elif name not in before:
            found.append(f"{name} is a claim, but has no stored verdict")
        elif difference := _difference(dict(_values(before[name])), dict(_values(now[name]))):
            found.append(f"{name}: {difference}")
    return found


def _difference(stored: Mapping[str, str], derived: Mapping[str, str]) -> str:
    """Return the first difference between a stored and a derived claim; empty if they are equal."""
    for field in dict.fromkeys((*derived, *stored)):
        one, other = stored.get(field, _ABSENT), derived.get(field, _ABSENT)
        if one != other:
            return f"{field} is {one}, expected {other}"
    return ""


def _values(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each value in a claim as two texts: the path to the value, and the value."""
    if isinstance(value, Mapping):
        for key, part in cast("Mapping[str, object]", value).items():
            yield from _values(part, f"{name} {key}".lstrip())
    elif isinstance(value, list):
        for number, part in enumerate(cast("list[object]", value), 1):
            yield from _values(part, f"{name} {number}")
    else:
        yield name, repr(value)
