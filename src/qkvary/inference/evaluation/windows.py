"""Windows over documents. Together, the windows score every token once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows of tokens, as arrays with one entry per window.

    The context of every window is empty at its start.
    """

    starts: Positions
    """The position of the first token of each window."""
    lengths: Positions
    """Number of input tokens of each window. The token after the last one is a target too."""
    known: Positions
    """Number of targets at the beginning of each window that an earlier window has scored."""

    def __len__(self) -> int:
        return len(self.starts)


def cut(spans: Positions, *, context: int, stride: int) -> Windows:
    """Cut documents into windows that score each token once, except a document's first token.

    A target has at least ``context - stride + 1`` preceding tokens in its window, or all preceding
    tokens of its document if these are fewer.
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


def trim_to_windows(spans: Positions, *, length: int) -> Positions:
    """Trim spans to whole windows of ``length`` tokens; drop spans shorter than one window.

    The trimmed spans can be cut into windows of any length, and the scored tokens stay the same.
    """
    whole = np.maximum(spans[:, 1] - spans[:, 0] - 1, 0) // length * length
    kept = np.stack((spans[:, 0], spans[:, 0] + whole + 1), axis=1)
    return kept[whole > 0]


def batch(windows: Windows, *, size: int) -> list[Positions]:
    """Group windows of similar lengths into batches of ``size``, the longest first."""
    order = np.argsort(-windows.lengths, kind="stable")
    return [order[first : first + size] for first in range(0, len(order), size)]
