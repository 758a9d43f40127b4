"""Checks stored verdicts on claims against those that follow now. Never imports torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from qkvary.storage.errors import DamagedError
from qkvary.storage.jsonvalues import decode
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file
from qkvary.studies.results.claim_verdicts import JudgedClaim


def read_verdicts(path: Path) -> list[Mapping[str, Any]]:
    """Return the claims of a JSON document that was written earlier.

    Raises:
        UsageError: if the file cannot be read.
        DamagedError: if it is not a document of claims.
    """
    written = read_file(path, limit=MAX_SIDE_FILE_BYTES)
    try:
        content = decode(written)
        claims = cast("Any", content)["claims"]
        if all(
            isinstance(one["name"], str) and isinstance(one["findings"], list) for one in claims
        ):
            return claims
    except (ValueError, RecursionError, KeyError, TypeError):
        pass
    raise DamagedError(f"expected a JSON document of qkvary claims in {path}")


def find_wrong(stored: Sequence[Mapping[str, Any]], judged: Sequence[JudgedClaim]) -> list[str]:
    """Return a sentence for each claim whose stored verdict or figures do not follow.

    Args:
        stored: The claims of an earlier document.
        judged: The claims as they are judged now.
    """
    now = {one.claim.name: one for one in judged}
    before = {str(one["name"]): one for one in stored}
    found: list[str] = []
    for name in dict.fromkeys((*before, *now)):
        if name not in now:
            found.append(f"{name} is not a claim")
        elif name not in before:
            found.append(f"{name} is missing")
        elif difference := _difference(before[name], now[name]):
            found.append(f"{name}: {difference}")
    return found


def _difference(stored: Mapping[str, Any], judged: JudgedClaim) -> str:
    """Return what differs first: the verdict, its condition or scale, or a figure."""
    for field in ("verdict", "condition", "scale"):
        derived = getattr(judged, field)
        if stored.get(field) != derived:
            return f"{field} is {stored.get(field)!r}, and {derived!r} follows"
    written = [(one.get("verdict"), one.get("figure")) for one in stored["findings"]]
    derived = [(one.verdict, one.figure) for one in judged.findings]
    for one, other in zip(written, derived, strict=False):
        if one != other:
            return f"a figure is {one[1]!r} ({one[0]}), and {other[1]!r} ({other[0]}) follows"
    return "" if len(written) == len(derived) else "figures are missing"
