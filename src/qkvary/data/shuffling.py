"""A shuffle without state: the new position of each index is computed.

A pseudo-random permutation of ``range(count)`` by a Feistel network over the next power of two;
results outside of the range are permuted again. The cost of a position does not depend on the
number of rows.

Source: Luby and Rackoff 1988 (the network); Black and Rogaway 2002 (cycle walking).
"""

import numpy as np
from numpy.typing import NDArray

from qkvary.data.random_numbers import Words, random_words

ROUNDS = 10
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_THIRTY, _TWENTY_SEVEN, _THIRTY_ONE = np.uint64(30), np.uint64(27), np.uint64(31)
LARGEST_COUNT = 2**62


def shuffled(indices: NDArray[np.int64], count: int, *purpose: str | int) -> NDArray[np.int64]:
    """Return where a permutation of ``range(count)`` maps indices.

    Args:
        indices: Indices in ``range(count)``, of any shape.
        count: The size of the range.
        purpose: A name and any numbers; every purpose has its own order.

    Raises:
        ValueError: if an index is out of range.
    """
    given = np.asarray(indices, dtype=np.int64)
    if not 1 <= count <= LARGEST_COUNT:
        raise ValueError(f"expected a count from 1 to 2**62, got {count}")
    if given.size and (given.min() < 0 or given.max() >= count):
        raise ValueError(f"expected indices from 0 to {count - 1}, got one outside")
    bits = (count - 1).bit_length()
    if bits == 0 or not given.size:
        return given.copy()
    keys = random_words(ROUNDS, *purpose)
    words = given.astype(np.uint64).ravel()
    limit = np.uint64(count)
    outside = np.arange(words.size)
    while outside.size:
        words[outside] = _permute(words[outside], bits, keys)
        outside = outside[words[outside] >= limit]
    return words.astype(np.int64).reshape(given.shape)


def _permute(words: Words, bits: int, keys: Words) -> Words:
    low_bits = np.uint64(bits // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(bits - bits // 2)) - np.uint64(1)
    low, high = words & low_mask, words >> low_bits
    for number, key in enumerate(keys):
        if number % 2:
            low = low ^ (_mixed(high, key) & low_mask)
        else:
            high = high ^ (_mixed(low, key) & high_mask)
    return high << low_bits | low


def _mixed(words: Words, key: np.uint64) -> Words:
    """Mix all bits: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    mixed = words + key
    mixed = (mixed ^ (mixed >> _THIRTY)) * _FIRST
    mixed = (mixed ^ (mixed >> _TWENTY_SEVEN)) * _SECOND
    return mixed ^ (mixed >> _THIRTY_ONE)
