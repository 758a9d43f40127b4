"""Random numbers that are pure functions of what they are asked for.

Only the bit stream of a bit generator is used: its values are promised not to change between
versions of numpy, which those of the distributions built on it are not.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def random_words(count: int, *purpose: str | int) -> Words:
    """Draw uniform 64-bit words.

    Args:
        count: How many.
        purpose: What they are for: a name and any numbers. Another purpose gives another stream.
    """
    return _generator(purpose).random_raw(count)


def random_indices(count: int, below: int, *purpose: str | int) -> NDArray[np.int64]:
    """Draw ``count`` independent indices, uniform in ``[0, below)`` up to ``below / 2**64``.

    Args:
        count: How many.
        below: The first index that is never drawn.
        purpose: As in ``random_words``.
    """
    return (random_words(count, *purpose) % np.uint64(below)).astype(np.int64)


def permutation(count: int, *purpose: str | int) -> NDArray[np.int64]:
    """Shuffle ``range(count)``: every order is equally likely.

    Args:
        count: How many indices.
        purpose: As in ``random_words``.
    """
    return np.argsort(random_words(count, *purpose), kind="stable").astype(np.int64)


def _generator(purpose: tuple[str | int, ...]) -> np.random.PCG64:
    if not purpose or not isinstance(purpose[0], str):
        raise ValueError(f"expected a purpose that begins with a name, got {purpose!r}")
    digest = hashlib.sha256("\n".join(map(str, purpose)).encode()).digest()
    return np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big")))
