"""Documents to arrays of tokens, as fast as each kind of tokenizer allows.

A long document is cut where no tokenizer of its kind ever joins: before a space behind something
else. What comes out is what the whole document would have given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.documents import Document
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from qkvary.storage.errors import UsageError

Tokens = NDArray[Any]
PIECE_CHARACTERS = 2**16
"""How long the pieces of a long document are, at least."""
LONGEST_UNBROKEN = 2**24
"""Characters without a space that a tokenizer is given at once."""
# Only these two are spaces to every library; what stands before them is none to any.
_BREAK = re.compile(r"(?<=\S)[ \n]")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocument:
    """One document as tokens."""

    tokens: Tokens
    """Its tokens, and the separator behind them."""
    text_bytes: int
    """Bytes of its text in UTF-8."""
    digest: int
    """The first 8 bytes of the sha256 of its text, without spaces at its ends."""


def digest_of(text: str) -> int:
    """The first 8 bytes of the sha256 of a text, without spaces at its ends."""
    return int.from_bytes(hashlib.sha256(text.strip().encode()).digest()[:8], "big")


def token_width(vocabulary: int) -> int:
    """Bytes of a stored token."""
    return 2 if vocabulary <= 2**16 else 4


class Encoder:
    """Turns documents into tokens; may be used by several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Find the quickest way.

        Raises:
            UsageError: if the tokenizer has no separator.
        """
        if tokenizer.separator is None:
            raise UsageError("expected a tokenizer with a separator, got one without")
        self._separator = tokenizer.separator
        self._vocabulary = tokenizer.vocabulary
        self._kind = np.dtype(f"<u{token_width(tokenizer.vocabulary)}")
        self._tokens = _fastest(tokenizer)

    def encode(self, documents: Sequence[Document]) -> list[EncodedDocument]:
        """The tokens of each document.

        Raises:
            UsageError: if one has no tokens; the message says where it is.
        """
        return [self._encode(document) for document in documents]

    def _encode(self, document: Document) -> EncodedDocument:
        try:
            found = self._tokens(document.text)
        except ValueError as error:
            raise UsageError(f"{document.where}: {error}") from None
        if found.size and int(found.max()) >= self._vocabulary:
            raise UsageError(
                f"{document.where}: expected tokens below {self._vocabulary}, got {found.max()}"
            )
        tokens = np.empty(found.size + 1, dtype=self._kind)
        tokens[:-1] = found
        tokens[-1] = self._separator
        return EncodedDocument(
            tokens=tokens,
            text_bytes=len(document.text.encode()),
            digest=digest_of(document.text),
        )


def cut_text(text: str, length: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a text before spaces that stand behind something else, into pieces of about a length.

    Raises:
        ValueError: if there is no such place for too long.
    """
    start = 0
    while start < len(text):
        found = _BREAK.search(text, start + length) if len(text) - start > length else None
        end = found.start() if found else len(text)
        # The look behind sees what stands before ``start + length`` too.
        if end - start > LONGEST_UNBROKEN + length:
            raise ValueError(
                f"expected a space in {LONGEST_UNBROKEN:,} characters, got none; take the "
                "tokenizer bytes for such a text"
            )
        yield text[start:end]
        start = end


def _fastest(tokenizer: Tokenizer) -> Callable[[str], Tokens]:
    if isinstance(tokenizer, BytePairTokenizer):
        encoding = tokenizer.encoding
        return lambda text: _joined(
            [encoding.encode_to_numpy(part, disallowed_special=()) for part in cut_text(text)]
        )
    if isinstance(tokenizer, ByteTokenizer):
        return lambda text: np.frombuffer(text.encode(), dtype=np.uint8)
    if isinstance(tokenizer, CharacterTokenizer):
        return _by_table(tokenizer)
    if isinstance(tokenizer, LibraryTokenizer):
        return _by_library(tokenizer)
    return lambda text: np.array(tokenizer.encode(text), dtype=np.int64)


def _by_library(tokenizer: LibraryTokenizer) -> Callable[[str], Tokens]:
    def encode(text: str) -> Tokens:
        if tokenizer.cuts_at_spaces:
            parts = list(cut_text(text))
        elif len(text) > LONGEST_UNBROKEN:
            raise ValueError(
                f"expected a document of at most {LONGEST_UNBROKEN:,} characters for this "
                f"tokenizer, got {len(text):,}: cut it with <|endoftext|>"
            )
        else:
            parts = [text]
        return _joined([np.array(tokenizer.encode(part), dtype=np.uint32) for part in parts])

    return encode


def _by_table(tokenizer: CharacterTokenizer) -> Callable[[str], Tokens]:
    letters = np.array([ord(letter) for letter in tokenizer.alphabet], dtype=np.int64)
    order = np.argsort(letters)
    ordered = letters[order]

    def encode(text: str) -> Tokens:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64)
        places = np.minimum(np.searchsorted(ordered, codes), len(ordered) - 1)
        if not np.array_equal(ordered[places], codes):
            wrong = text[int(np.argmax(ordered[places] != codes))]
            raise ValueError(
                f"expected characters out of the {len(ordered)} of the alphabet, got {wrong!r}"
            )
        return order[places]

    return encode


def _joined(parts: list[Tokens]) -> Tokens:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)
