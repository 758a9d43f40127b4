"""Which split a document belongs to, where its corpus does not say: a rule, never a draw.

A share of the documents is held out, chosen by the sha256 of the text. So the same text always
falls on the same side, however often it occurs, and more data changes nothing for what was there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from qkvary.storage.jsonvalues import JsonValue

FAR = 2.0
"""How many times too large or too small a share of the bytes is far from the one asked for."""
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


def miss_of(rule: HeldOut, documents: Iterable[tuple[int, int]]) -> float:
    """How many times too large or too small the share of the bytes is that a rule holds out.

    Args:
        rule: The rule.
        documents: Digest and bytes of each.
    """
    sizes = {"train": 0, "validation": 0}
    for digest, size in documents:
        sizes[rule.split_of(digest)] += size
    return _miss(rule.share, sizes["validation"], sizes["train"])


def explain_miss(share: float, held_out: int, rest: int) -> str | None:
    """What a person should know of a share that is far from the one asked for; else ``None``.

    Args:
        share: Asked for.
        held_out: Bytes that are for validation.
        rest: Bytes that are not.
    """
    if _miss(share, held_out, rest) <= FAR:
        return None
    found = held_out / (held_out + rest)
    return (
        f"held out are {found:.2g} of the text, not {share:.2g}: documents are held out whole, and "
        "these are few or unlike in size; `qkvary data prepare --validation` names others"
    )


def _miss(share: float, held_out: int, rest: int) -> float:
    if not held_out:
        return math.inf
    found = held_out / (held_out + rest)
    return max(found / share, share / found)
