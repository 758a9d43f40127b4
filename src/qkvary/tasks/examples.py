"""Examples of a trained network: attention maps and samples. Never imports torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionExample:
    """Attention maps of a network on one validation example."""

    maps: NDArray[np.floating[Any]]
    """Attention weights, ``[layers, heads, rows, columns]``; a row is a query."""
    tokens: tuple[str, ...]
    """The example's tokens as printed, one per column."""
    targets: tuple[int | None, ...]
    """The column that holds the answer of each row; None if no single column does."""
    kind: str = ""
    """The layers, where a network has several kinds, such as ``cross attention``."""
    others: "tuple[AttentionExample, ...]" = ()
    """The maps of the other kinds of layers on the same example."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A question of the validation split, the right answer and a network's answer."""

    truth: str
    """The right answer; of a set of pictures the number of one, from 1."""
    answer: str
    """The network's answer."""
    text: str = ""
    """The text that is asked about; empty for pictures."""
    pictures: NDArray[np.uint8] | None = None
    """The pictures that are asked about, ``[count, channels, rows, columns]``."""
