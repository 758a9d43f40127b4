"""Defines examples from a trained network: attention maps and samples. Torch-free."""

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
    """The printed tokens of the example, one per column."""
    targets: tuple[int | None, ...]
    """For each row, the column that holds the answer; None if no single column does."""
    kind: str = ""
    """The kind of the layers, such as ``cross attention``, if a network has several kinds."""
    others: "tuple[AttentionExample, ...]" = ()
    """Attention maps of the layers of other kinds, on the same example."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A question of the validation split, the right answer and a network's answer."""

    truth: str
    """The right answer. In a set of pictures, it is the number of a picture, counted from 1."""
    answer: str
    text: str = ""
    """The text to be classified or translated; empty for pictures."""
    pictures: NDArray[np.uint8] | None = None
    """The pictures to be classified, ``[count, channels, rows, columns]``."""
