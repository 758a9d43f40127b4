"""Cut documents into windows so that every token is scored once. Knows positions, not networks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Stretches of tokens, each read from an empty context; three arrays of one length."""

    starts: Positions
    """Where the first token that is read stands."""
    lengths: Positions
    """Tokens that are read; the one behind the last of them is a target too."""
    known: Positions
    """Targets at the beginning that an earlier window has scored: context only."""

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def targets(self) -> int:
        """Tokens that are scored, all windows together."""
        return int((self.lengths - self.known).sum())


def cut(spans: Positions, *, context: int, stride: int) -> Windows:
    """Windows over documents; every token of a document but its first is scored once.

    A target has at least ``context - stride + 1`` tokens before it that are read, or all that its
    document has.

    Args:
        spans: Where documents begin and end: [documents, 2].
        context: Tokens that a window reads at most.
        stride: Tokens by which a window is ahead of the one before.

    Raises:
        ValueError: if the stride is not from 1 to the context.
    """
    if not 1 <= stride <= context:
        raise ValueError(f"expected a stride from 1 to the context of {context}, got {stride}")
    targets = np.maximum(spans[:, 1] - spans[:, 0] - 1, 0)
    further = np.maximum(targets - context, 0)
    counts = np.where(targets > 0, 1 - (-further // stride), 0)
    document = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return Windows(
        starts=spans[document, 0] + number * stride,
        lengths=np.minimum(context, targets[document] - number * stride),
        known=np.where(number > 0, context - stride, 0),
    )


def keep_whole(spans: Positions, *, length: int) -> Positions:
    """Spans cut to as many windows of a length as each holds; shorter ones are left out.

    Whatever windows are then cut from them, it is the same tokens that are scored.

    Args:
        spans: Where documents begin and end: [documents, 2].
        length: Tokens that such a window reads; the one behind it is a target too.
    """
    whole = np.maximum(spans[:, 1] - spans[:, 0] - 1, 0) // length * length
    kept = np.stack((spans[:, 0], spans[:, 0] + whole + 1), axis=1)
    return kept[whole > 0]


def batch(windows: Windows, *, size: int) -> list[Positions]:
    """Numbers of windows that are read together: of like lengths, the longest first.

    Args:
        windows: All of them.
        size: Windows of a batch at most.
    """
    order = np.argsort(-windows.lengths, kind="stable")
    return [order[first : first + size] for first in range(0, len(order), size)]
