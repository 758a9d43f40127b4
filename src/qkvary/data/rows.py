"""The rows of each training step, as a pure function.

Row ``j`` of step ``s`` is row ``n = s * batch + j`` of a run. Each epoch visits every row once, in
an order that is computed, not stored. So a run can resume at any step, and processes can share a
batch without communication.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.data.prepared import TokenSplit
from qkvary.data.random_numbers import shuffled

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Concatenated documents, cut every ``context`` tokens.

    Row i is tokens ``i * context`` to ``i * context + context``: the last target of a row is the
    first input of the next, so that every token but the first is a target once. An incomplete last
    row is not used.
    """

    split: TokenSplit
    """The split that provides the tokens."""
    context: int
    """Tokens that a network sees at once."""

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ValueError(f"expected a context of at least 1, got {self.context}")
        if self.rows < 1:
            raise ValueError(
                f"expected more than {self.context:,} tokens for a context of {self.context:,}, "
                f"got {self.split.tokens:,}"
            )

    @property
    def rows(self) -> int:
        """The number of complete rows."""
        return (self.split.tokens - 1) // self.context

    def read(self, numbers: Rows) -> Rows:
        """Return the tokens of rows, ``[len(numbers), context + 1]``."""
        return self.split.gather(np.asarray(numbers) * self.context, self.context + 1)

    def documents(self, numbers: Rows) -> Rows:
        """Return the document index of each input, ``[len(numbers), context]``.

        A separator belongs to the document that it ends.
        """
        starts = np.asarray(numbers, dtype=np.int64) * self.context
        return self.split.documents_of(starts[:, None] + np.arange(self.context))


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """One document per row, truncated to ``context + 1`` tokens and padded with the separator."""

    split: TokenSplit
    """The split that provides the documents."""
    context: int
    """Tokens that a network sees at once."""
    separator: int
    """The padding token."""

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ValueError(f"expected a context of at least 1, got {self.context}")
        if self.rows < 1:
            raise ValueError("expected a document, got none")

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
        """Return the unpadded length of each row, including the document's own separator."""
        return np.array(self._places(numbers)[1], dtype=np.int64)

    def _places(self, numbers: Rows) -> tuple[list[int], list[int]]:
        chosen = np.asarray(numbers, dtype=np.int64)
        starts = self.split.document_starts
        lengths = np.minimum(starts[chosen + 1] - starts[chosen], self.context + 1)
        return starts[chosen].tolist(), lengths.tolist()


def rows_of_step(
    step: int, batch_size: int, *, rows: int, seed: int, chosen: slice = slice(None)
) -> Rows:
    """Return the row numbers of the batch of a step.

    Args:
        step: The step, from 0.
        batch_size: Rows of the global batch.
        rows: Rows per epoch.
        seed: The seed of the order.
        chosen: The part of the batch to return, for a process that shares it.

    Raises:
        ValueError: if an argument is out of range.
    """
    if step < 0 or batch_size < 1 or rows < 1:
        raise ValueError(
            f"expected a step of at least 0, a batch and rows of at least 1, got {step}, "
            f"{batch_size} and {rows}"
        )
    numbers = step * batch_size + np.arange(batch_size, dtype=np.int64)[chosen]
    epochs, places = np.divmod(numbers, rows)
    found = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
        here = epochs == epoch
        found[here] = shuffled(places[here], rows, "rows", seed, epoch)
    return found
