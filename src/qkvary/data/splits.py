"""Defines the splits of a data set, and a rule that splits a corpus without splits.

The rule uses the sha256 of each text to decide if the document is held out. Equal texts are
therefore always in the same split. Additional documents do not move others to another split. Small
data sets are the exception, because their held-out share is exact.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from qkvary.storage.jsonvalues import JsonValue

DataSplit = Literal["train", "validation", "test"]

MAX_SHARE_ERROR = 2.0
"""The largest accepted ``share_error``."""
MAX_EXACT_DOCUMENTS = 1000
"""Up to this number of documents, the requested share is held out exactly, but at least one
document. In larger sets, the share is approximate, because each digest decides on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The rule that holds out a share of the documents for validation."""

    share: float
    highest: int | None = None
    """The largest digest that is held out. If None, it is computed from the share."""

    def split_of(self, digest: int) -> str:
        """Return the split, ``train`` or ``validation``, for the first 8 bytes of a sha256."""
        highest = int(self.share * 2**64) - 1 if self.highest is None else self.highest
        return "validation" if digest <= highest else "train"

    def describe(self) -> dict[str, JsonValue]:
        """Return the rule as JSON for the manifest."""
        rule = "smallest sha256" if self.highest is not None else "sha256 below share * 2**256"
        highest = None if self.highest is None else f"{self.highest:016x}"
        return {"rule": rule, "share": self.share, "highest": highest}


def make_held_out(share: float, digests: Collection[int]) -> HeldOut | None:
    """Return the rule that holds out a share of the documents.

    The share is exact for up to ``MAX_EXACT_DOCUMENTS`` documents. The result is None if there are
    fewer than two distinct documents.
    """
    if len(digests) > MAX_EXACT_DOCUMENTS:
        return HeldOut(share=share)
    found = {*digests}
    if len(found) < 2:
        return None
    count = min(max(1, round(share * len(found))), len(found) - 1)
    return HeldOut(share=share, highest=sorted(found)[count - 1])


def share_error(share: float, held_out: int, rest: int) -> float:
    """Return the ratio between the actual and the requested held-out share of bytes, at least 1."""
    if not held_out:
        return math.inf
    found = held_out / (held_out + rest)
    return max(found / share, share / found)
