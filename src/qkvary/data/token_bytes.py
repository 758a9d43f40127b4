"""Counts the bytes that each token adds to a text, inside a document and at its start.

Some tokenizers put a space before every document and include it in the first token. This space is
not part of the text. Inside a document, the space of the same token is part of the text. The token
therefore adds one byte less at the start of a document.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.data.tokenizers import Tokenizer

NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """The number of UTF-8 bytes of each token; 0 for tokens that are not text."""

    inside: NDArray[np.int64]
    """The number of bytes of each token of the vocabulary inside a document."""
    first: NDArray[np.int64]
    """The number of bytes of each token as the first token of a document."""
    opening: int
    """The token before the first token of a document. This is the beginning token if there is one,
    else the separator if there is one, else ``NONE``."""

    def of(self, tokens: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of bytes of each token, given the token before it."""
        return np.where(before == self.opening, self.first[tokens], self.inside[tokens])


def count_token_bytes(tokenizer: Tokenizer, marks: NDArray[np.bool_]) -> TokenBytes:
    """Count the bytes of every token of a vocabulary."""
    begin, separator = tokenizer.beginning, tokenizer.separator
    opening = separator if begin is None else begin
    return TokenBytes(
        inside=np.array([*map(len, list_token_bytes(tokenizer, marks))]),
        first=np.array([*map(len, _token_bytes_after(tokenizer, marks, begin))]),
        opening=NONE if opening is None else opening,
    )


def find_boundary_tokens(tokenizer: Tokenizer, separator: int | None) -> NDArray[np.bool_]:
    """Return a mask of the tokens that begin or end documents and are not text."""
    marks = np.zeros(tokenizer.vocabulary, dtype=np.bool_)
    for token in (separator, tokenizer.beginning, *tokenizer.ends):
        if token is not None:
            marks[token] = True
    return marks


def list_token_bytes(tokenizer: Tokenizer, marks: NDArray[np.bool_]) -> list[bytes]:
    """Return the bytes that each token adds inside a document; empty for boundary tokens."""
    # After an ordinary token, no token loses its leading space.
    ordinary = (token for token in np.flatnonzero(~marks).tolist() if tokenizer.piece(token))
    return _token_bytes_after(tokenizer, marks, next(ordinary, None))


def _token_bytes_after(
    tokenizer: Tokenizer, marks: NDArray[np.bool_], before: int | None
) -> list[bytes]:
    return [
        b"" if is_mark else tokenizer.piece(token, after=before)
        for token, is_mark in enumerate(marks.tolist())
    ]
