"""Defines the splits of a data set, and a rule that splits a corpus without splits.

The sha256 of each text decides whether the document is held out. Equal texts are therefore always
in the same split. Additional data does not move documents to another split, unless the documents
are so few that their exact share is held out.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from qkvary.storage.jsonvalues import JsonValue

DataSplit = Literal["train", "validation", "test"]

MAX_SHARE_ERROR = 2.0
"""The largest accepted ratio between the actual and the requested share of bytes."""
MAX_EXACT_DOCUMENTS = 1000
"""Up to this number of documents the share is exact, with at least one document held out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The rule that holds out a share of the documents for validation."""

    share: float
    highest: int | None = None
    """The largest digest that is held out; derived from the share if None."""

    def split_of(self, digest: int) -> str:
        """Return ``train`` or ``validation`` by the first 8 bytes of a document's sha256."""
        highest = int(self.share * 2**64) - 1 if self.highest is None else self.highest
        return "validation" if digest <= highest else "train"

    def describe(self) -> dict[str, JsonValue]:
        """Return the rule for the manifest."""
        rule = "smallest sha256" if self.highest is not None else "sha256 below share * 2**256"
        highest = None if self.highest is None else f"{self.highest:016x}"
        return {"rule": rule, "share": self.share, "highest": highest}


def make_held_out(share: float, digests: Collection[int]) -> HeldOut | None:
    """Return the rule that holds out a share of the documents; it is exact for few documents.

    If there are fewer than two distinct documents, there is no rule.
    """
    if len(digests) > MAX_EXACT_DOCUMENTS:
        return HeldOut(share=share)
    found = {*digests}
    if len(found) < 2:
        return None
    count = min(max(1, round(share * len(found))), len(found) - 1)
    return HeldOut(share=share, highest=sorted(found)[count - 1])


def share_error(share: float, held_out: int, rest: int) -> float:
    """Return the factor by which the held-out share of the bytes is too large or too small."""
    if not held_out:
        return math.inf
    found = held_out / (held_out + rest)
    return max(found / share, share / found)
