"""The smallest pieces of a network that are counted: matrices, tables and normalisations.

Sizes only: a piece knows neither what it computes nor where it stands.
"""

from dataclasses import dataclass

LARGEST_SIZE = 2**40
"""Sizes beyond this are a mistake in a configuration, not a network."""


def check_sizes(owner: object, *names: str) -> None:
    """Refuse fields that are not positive numbers of a plausible magnitude; ``None`` is no size.

    Raises:
        ValueError: with the name of the piece and of the size.
    """
    for name in names:
        size: int | None = getattr(owner, name)
        if size is not None and not 1 <= size <= LARGEST_SIZE:
            kind = type(owner).__name__
            raise ValueError(f"expected {name} of a {kind} in 1 ... 2^40, got {size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A matrix that every token passes through."""

    inputs: int
    """Channels that enter."""
    outputs: int
    """Channels that leave."""
    bias: bool = False
    """Whether one number is added to each output."""
    groups: int = 1
    """Diagonal blocks; 1 for a full matrix."""
    tied: bool = False
    """Whether the matrix is a table's, used again: multiplied here, counted as parameters there."""
    is_pooled: bool = False
    """Whether one vector of a sequence passes through it, as in a classifier's head."""
    skipped_tokens: int = 0
    """Tokens of a sequence that do not pass through it, such as a learned class token."""

    def __post_init__(self) -> None:
        check_sizes(self, "inputs", "outputs", "groups")

    @property
    def weights(self) -> int:
        """Entries of the matrix, which are also the multiply-accumulates of a token."""
        return self.inputs * self.outputs // self.groups

    @property
    def biases(self) -> int:
        """Entries of the bias."""
        return self.outputs if self.bias else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows that are looked up and not multiplied: an embedding, or learned positions."""

    rows: int
    """Entries to look up."""
    width: int
    """Channels of an entry."""
    bias: bool = False
    """Whether one number is added to each channel."""

    def __post_init__(self) -> None:
        check_sizes(self, "rows", "width")

    @property
    def weights(self) -> int:
        """Entries of the table."""
        return self.rows * self.width

    @property
    def biases(self) -> int:
        """Entries of the bias."""
        return self.width if self.bias else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation with a learned gain."""

    width: int
    """Channels of the gain."""
    bias: bool = False
    """Whether it has a bias too, as LayerNorm usually does."""

    def __post_init__(self) -> None:
        check_sizes(self, "width")

    @property
    def weights(self) -> int:
        """Entries of the gain."""
        return self.width

    @property
    def biases(self) -> int:
        """Entries of the bias."""
        return self.width if self.bias else 0
