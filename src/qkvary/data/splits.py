"""Which split a document belongs to, where its corpus does not say: a rule, never a draw.

A share of the documents is held out, chosen by the sha256 of the text. So the same text always
falls on the same side, however often it occurs, and more data changes nothing for what was there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qkvary.storage.jsonvalues import JsonValue

FEW = 1000
"""Up to so many documents the share is met exactly, and at least one document is held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A share of the documents for validation."""

    share: float
    """Of the documents, between 0 and 1."""
    highest: int | None = None
    """Documents whose digest is at most this are held out; by default as the share says."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"expected a share between 0 and 1 to hold out, got {self.share}")

    def split_of(self, digest: int) -> str:
        """``train`` or ``validation``, by the first 8 bytes of a document's sha256."""
        highest = int(self.share * 2**64) - 1 if self.highest is None else self.highest
        return "validation" if digest <= highest else "train"

    def describe(self) -> dict[str, JsonValue]:
        """What the manifest says about it."""
        rule = "smallest sha256" if self.highest is not None else "sha256 below share * 2**256"
        highest = None if self.highest is None else f"{self.highest:016x}"
        return {"rule": rule, "share": self.share, "highest": highest}


def hold_out(share: float, digests: Iterable[int]) -> HeldOut | None:
    """The rule for documents: exact where they are few.

    Args:
        share: Of the documents.
        digests: Of the documents; only the first ``FEW + 1`` are looked at.

    Returns:
        ``None`` if all the documents are one.
    """
    found: set[int] = set()
    for number, digest in enumerate(digests):
        if number >= FEW:
            return HeldOut(share=share)
        found.add(digest)
    if len(found) < 2:
        return None
    count = min(max(1, round(share * len(found))), len(found) - 1)
    return HeldOut(share=share, highest=sorted(found)[count - 1])
