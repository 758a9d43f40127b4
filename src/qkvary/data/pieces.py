"""What each token of a vocabulary adds to a text, inside a document and as its first one.

Some tokenizers put a space before every document and mark it in the first token. It is no part of
the text, while the same token inside a document stands for a space and what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.data.tokenizers import Tokenizer

NONE = -1
"""In the place of a token where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """How many UTF-8 bytes of a text each token stands for; 0 for those that are no text."""

    inside: NDArray[np.int64]
    """Of each token of the vocabulary, inside a document."""
    first: NDArray[np.int64]
    """The same, where it is the first of a document."""
    opening: int
    """The token behind which documents begin: a beginning, else the separator, else ``NONE``."""

    def of(self, tokens: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes of each of some tokens.

        Args:
            tokens: Which.
            before: The token before each of them.
        """
        return np.where(before == self.opening, self.first[tokens], self.inside[tokens])


def measure_tokens(tokenizer: Tokenizer, marks: NDArray[np.bool_]) -> TokenBytes:
    """The bytes of every token of a vocabulary.

    Args:
        tokenizer: Whose tokens.
        marks: Of ``find_marks``.
    """
    begin, separator = tokenizer.beginning, tokenizer.separator
    opening = separator if begin is None else begin
    return TokenBytes(
        inside=_measure(list_pieces(tokenizer, marks)),
        first=_measure(_pieces_behind(tokenizer, marks, begin)),
        opening=NONE if opening is None else opening,
    )


def find_marks(tokenizer: Tokenizer, separator: int | None) -> NDArray[np.bool_]:
    """Which tokens of the vocabulary mark beginnings and ends, and are no text."""
    marks = np.zeros(tokenizer.vocabulary, dtype=np.bool_)
    for token in (separator, tokenizer.beginning, *tokenizer.ends):
        if token is not None:
            marks[token] = True
    return marks


def list_pieces(tokenizer: Tokenizer, marks: NDArray[np.bool_]) -> list[bytes]:
    """The bytes that each token adds inside a document; none where it is a mark.

    Args:
        tokenizer: Whose tokens.
        marks: Of ``find_marks``.
    """
    return _pieces_behind(tokenizer, marks, _find_usual(tokenizer, marks))


def _pieces_behind(
    tokenizer: Tokenizer, marks: NDArray[np.bool_], before: int | None
) -> list[bytes]:
    return [
        b"" if is_mark else tokenizer.piece(token, after=before)
        for token, is_mark in enumerate(marks.tolist())
    ]


def _find_usual(tokenizer: Tokenizer, marks: NDArray[np.bool_]) -> int | None:
    """A token in the middle of a text, behind which no other loses a space."""
    candidates = (token for token in np.flatnonzero(~marks).tolist() if tokenizer.piece(token))
    return next(candidates, None)


def _measure(pieces: Sequence[bytes]) -> NDArray[np.int64]:
    return np.array([len(piece) for piece in pieces], dtype=np.int64)
