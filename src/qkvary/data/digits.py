"""Sequences of independent, uniform digits: the input of the synthetic tasks."""

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from qkvary.arch.parts import check_word
from qkvary.data.rows import random_words
from qkvary.data.splits import DataSplit


def draw_digits(
    *, seed: int, length: int, split: DataSplit, count: int, vocabulary: int = 10
) -> NDArray[np.int64]:
    """Draw ``count`` sequences, always the same ones for the same arguments.

    The splits are separate streams, so that the size of one does not affect another. A larger
    ``count`` begins with the sequences of a smaller one.

    Args:
        seed: The seed.
        length: Digits per sequence.
        split: The split.
        count: The number of sequences.
        vocabulary: Digits range from 0 to ``vocabulary - 1``.

    Returns:
        Digits, ``[count, length]``.
    """
    if length < 1 or count < 1 or vocabulary < 2:
        raise ValueError(
            f"expected a length and count of at least 1 and a vocabulary of at least 2, "
            f"got {length}, {count} and {vocabulary}"
        )
    check_word("a split", split, get_args(DataSplit))
    words = random_words(count * length, "digits", seed, length, vocabulary, split)
    return (words % np.uint64(vocabulary)).astype(np.int64).reshape(count, length)
