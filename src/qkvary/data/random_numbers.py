"""Random numbers as pure functions of a purpose.

Only the raw bit stream of a bit generator is used: numpy guarantees it across versions, unlike the
distributions built on it.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


def random_words(count: int, *purpose: str | int) -> Words:
    """Draw uniform 64-bit words.

    Args:
        count: The number of words.
        purpose: A name and any numbers; every purpose has its own stream.
    """
    return _generator(purpose).random_raw(count)


def random_indices(count: int, below: int, *purpose: str | int) -> NDArray[np.int64]:
    """Draw ``count`` independent indices, uniform in ``[0, below)`` up to ``below / 2**64``.

    Args:
        count: The number of indices.
        below: The exclusive upper bound.
        purpose: As in ``random_words``.
    """
    return (random_words(count, *purpose) % np.uint64(below)).astype(np.int64)


def permutation(count: int, *purpose: str | int) -> NDArray[np.int64]:
    """Return a uniformly random permutation of ``range(count)``.

    Args:
        count: The number of indices.
        purpose: As in ``random_words``.
    """
    return np.argsort(random_words(count, *purpose), kind="stable").astype(np.int64)


def _generator(purpose: tuple[str | int, ...]) -> np.random.PCG64:
    if not purpose or not isinstance(purpose[0], str):
        raise ValueError(f"expected a purpose that begins with a name, got {purpose!r}")
    digest = hashlib.sha256("\n".join(map(str, purpose)).encode()).digest()
    return np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big")))
