"""Chooses the rows of each training step, and draws random numbers. All functions are pure.

Row ``j`` of step ``s`` is row ``n = s * batch + j`` of a run. Each epoch visits every row once, in
an order that is computed, not stored. A run can therefore resume at any step, and processes can
share a batch without communication.

Random numbers come from the raw bits of a bit generator. numpy guarantees that these bits stay the
same in future versions; it does not guarantee this for its random distributions.
"""

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.data.prepared import TokenSplit
from qkvary.storage.errors import UsageError

Words = NDArray[np.uint64]
ROUNDS = 10
LARGEST_COUNT = 2**62
Rows = NDArray[np.int64]


def random_words(count: int, *purpose: str | int) -> Words:
    """Return uniformly random 64-bit words.

    ``purpose`` is a name and any numbers. Each purpose has its own random stream.
    """
    digest = hashlib.sha256("\n".join(map(str, purpose)).encode()).digest()
    seed = np.random.SeedSequence(int.from_bytes(digest, "big"))
    return np.random.PCG64(seed).random_raw(count)


def random_indices(count: int, below: int, *purpose: str | int) -> NDArray[np.int64]:
    """Draw ``count`` independent indices, almost uniform in ``[0, below)``.

    The relative bias of an index is at most ``below / 2**64``.
    """
    return (random_words(count, *purpose) % np.uint64(below)).astype(np.int64)


def permutation(count: int, *purpose: str | int) -> NDArray[np.int64]:
    """Return a uniformly random permutation of ``range(count)``."""
    return np.argsort(random_words(count, *purpose), kind="stable").astype(np.int64)


def epoch_batch(
    count: int, batch_size: int, *, step: int, seed: int, what: str = "examples"
) -> NDArray[np.int64]:
    """Return the indices of the examples of one step.

    Steps count from 0 over all epochs. An epoch drops its last partial batch. The order of the
    examples depends on the seed, the epoch and ``what``, the name of the examples.
    """
    per_epoch = count // batch_size
    if per_epoch < 1:
        raise ValueError(f"expected batches of at most {count:,} {what}, got {batch_size:,}")
    epoch, index = divmod(step, per_epoch)
    return _order(count, what, seed, epoch)[index * batch_size : (index + 1) * batch_size]


@functools.lru_cache(maxsize=2)
def _order(count: int, what: str, seed: int, epoch: int) -> NDArray[np.int64]:
    order = permutation(count, f"order of {what}", seed, epoch)
    order.flags.writeable = False
    return order


def shuffled(indices: NDArray[np.int64], count: int, *purpose: str | int) -> NDArray[np.int64]:
    """Map indices through a random permutation of ``range(count)``, different for each purpose.

    The permutation is not stored, and the cost per index does not depend on ``count``. A Feistel
    network permutes the numbers up to the next power of two. Results outside ``range(count)`` are
    permuted again.

    Source: Luby and Rackoff 1988 (the network); Black and Rogaway 2002 (cycle walking).
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
    outside = np.arange(words.size)
    while outside.size:
        words[outside] = _permute(words[outside], bits, keys)
        outside = outside[words[outside] >= count]
    return words.astype(np.int64).reshape(given.shape)


def _permute(words: Words, bits: int, keys: Words) -> Words:
    half = bits // 2
    low_bits, low_mask = np.uint64(half), np.uint64(2**half - 1)
    high_mask = np.uint64(2 ** (bits - half) - 1)
    low, high = words & low_mask, words >> low_bits
    for number, key in enumerate(keys):
        if number % 2:
            low = low ^ (_mixed(high, key) & low_mask)
        else:
            high = high ^ (_mixed(low, key) & high_mask)
    return high << low_bits | low


def _mixed(words: Words, key: np.uint64) -> Words:
    """Mix all bits of words with the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    mixed = words + key
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of ``context + 1`` tokens, cut from the concatenated documents.

    Row i has the tokens ``i * context`` to ``i * context + context``. The last target of a row is
    the first input of the next row, so every token except the first is a target once. An incomplete
    last row is not used.
    """

    split: TokenSplit
    context: int
    """Number of input tokens per row."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise UsageError(
                f"expected more than {self.context:,} tokens for a context of {self.context:,}, "
                f"got {self.split.tokens:,} in {self.split.where}"
            )

    @property
    def rows(self) -> int:
        """The number of complete rows."""
        return (self.split.tokens - 1) // self.context

    def read(self, numbers: Rows) -> Rows:
        """Return the tokens of rows, ``[len(numbers), context + 1]``."""
        return self.split.gather(np.asarray(numbers) * self.context, self.context + 1)

    def documents(self, numbers: Rows) -> Rows:
        """Return the document index of each input. A separator belongs to the document it ends."""
        starts = np.asarray(numbers, dtype=np.int64) * self.context
        return self.split.documents_of(starts[:, None] + np.arange(self.context))


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """One document per row, truncated to ``context + 1`` tokens and padded with the separator."""

    split: TokenSplit
    context: int
    """Number of input tokens per row."""
    separator: int
    """The token that pads short documents."""

    @property
    def rows(self) -> int:
        """The number of documents."""
        return self.split.documents

    def read(self, numbers: Rows) -> Rows:
        """Return the tokens of rows, ``[len(numbers), context + 1]``."""
        found = np.full((len(numbers), self.context + 1), self.separator, dtype=np.int64)
        for row, start, length in zip(found, *self._places(numbers), strict=True):
            row[:length] = self.split.read(start, length)
        return found

    def lengths(self, numbers: Rows) -> Rows:
        """Return the number of tokens in each row, separators included and padding excluded."""
        return np.array(self._places(numbers)[1], dtype=np.int64)

    def _places(self, numbers: Rows) -> tuple[list[int], list[int]]:
        chosen = np.asarray(numbers, dtype=np.int64)
        starts = self.split.document_starts
        lengths = np.minimum(starts[chosen + 1] - starts[chosen], self.context + 1)
        return starts[chosen].tolist(), lengths.tolist()


def rows_of_step(
    step: int, batch_size: int, *, rows: int, seed: int, chosen: slice = slice(None)
) -> Rows:
    """Return the row numbers of a step's batch, or of the ``chosen`` part of the batch."""
    numbers = step * batch_size + np.arange(batch_size, dtype=np.int64)[chosen]
    epochs, places = np.divmod(numbers, rows)
    found = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        found[here] = shuffled(places[here], rows, "rows", seed, epoch)
    return found
