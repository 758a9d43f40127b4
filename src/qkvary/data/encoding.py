"""Fast encoding of documents to token arrays.

A long document is split before whitespace that follows another character. No tokenizer of its kind
merges across such a place, so the tokens equal those of the whole document.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.documents import Document
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from qkvary.storage.errors import UsageError

Tokens = NDArray[Any]
PIECE_CHARACTERS = 2**20
"""Minimum number of characters of each part of a long document."""
LIBRARY_CHARACTERS = 2**16
"""The same for the ``tokenizers`` library, which is slower on longer texts."""
LONGEST_UNBROKEN = 2**24
"""Maximum number of characters without whitespace that a tokenizer may receive."""
# Every library treats these two as whitespace.
_BREAK = re.compile(r"(?<=\S)[ \n]")


class EncodedDocument(NamedTuple):
    """A document as tokens."""

    tokens: Tokens
    """The tokens; the last one is the separator."""
    text_bytes: int
    """The UTF-8 bytes of the text."""
    digest: int
    """The first 8 bytes of the sha256 of the stripped text."""


def digest_of(text: str) -> int:
    """Return the first 8 bytes of the sha256 of the stripped text."""
    return _digest(_inner(text, text.encode()))


def _inner(text: str, data: bytes) -> bytes | memoryview:
    """Return the bytes of the stripped text, copied only if necessary."""
    if not text.isascii():
        return text.strip().encode() if text[:1].isspace() or text[-1:].isspace() else data
    start, end = 0, len(text)
    while end and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return memoryview(data)[start:end]


def _digest(data: bytes | memoryview) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def token_width(vocabulary: int) -> int:
    """Return the bytes per stored token."""
    return 2 if vocabulary <= 2**16 else 4


class Encoder:
    """Turns documents into tokens; thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Select the fastest encoder of the tokenizer.

        Raises:
            UsageError: if the tokenizer has no separator.
        """
        if tokenizer.separator is None:
            raise UsageError("expected a tokenizer with a separator, got one without")
        self._end = np.array([tokenizer.separator], dtype=np.uint32)
        self._vocabulary = tokenizer.vocabulary
        self._kind = np.dtype(f"<u{token_width(tokenizer.vocabulary)}")
        self._tokens = _fast_encoder(tokenizer)

    def encode(self, documents: Sequence[Document]) -> list[EncodedDocument]:
        """Return the tokens of each document.

        Raises:
            UsageError: if a document cannot be encoded; the message says where it is.
        """
        parts: list[Tokens] = []
        for document in documents:
            try:
                parts += self._tokens(document.text), self._end
            except ValueError as error:
                raise UsageError(f"{document.where}: {error}") from None
        # One array for all documents: for short documents, an array costs more than the tokens.
        together = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        if together.size and int(together.max()) >= self._vocabulary:
            self._refuse(documents, parts)
        return self._divide(documents, parts, together.astype(self._kind))

    def _divide(
        self, documents: Sequence[Document], parts: Sequence[Tokens], together: Tokens
    ) -> list[EncodedDocument]:
        found: list[EncodedDocument] = []
        start = 0
        for document, part in zip(documents, parts[::2], strict=True):
            end = start + len(part) + 1
            data = document.text.encode()
            digest = _digest(_inner(document.text, data))
            found.append(EncodedDocument(together[start:end], len(data), digest))
            start = end
        return found

    def _refuse(self, documents: Sequence[Document], parts: Sequence[Tokens]) -> None:
        for document, part in zip(documents, parts[::2], strict=True):
            if part.size and part.max() >= self._vocabulary:
                raise UsageError(
                    f"{document.where}: expected tokens below {self._vocabulary}, got {part.max()}"
                )


def cut_text(text: str, length: int) -> Iterator[str]:
    """Split a text before whitespace into parts of about this length.

    Raises:
        ValueError: if a part would be too long.
    """
    start = 0
    while start < len(text):
        found = _BREAK.search(text, start + length) if len(text) - start > length else None
        end = found.start() if found else len(text)
        # The lookbehind also sees the character before ``start + length``.
        if end - start > LONGEST_UNBROKEN + length:
            raise ValueError(
                f"expected a space in {LONGEST_UNBROKEN:,} characters, got none; use the "
                "tokenizer bytes for such a text"
            )
        yield text[start:end]
        start = end


def _fast_encoder(tokenizer: Tokenizer) -> Callable[[str], Tokens]:
    if isinstance(tokenizer, BytePairTokenizer):
        encoding = tokenizer.encoding

        def encode(text: str) -> Tokens:
            if len(text) <= PIECE_CHARACTERS:
                return encoding.encode_to_numpy(text, disallowed_special=())
            pieces = cut_text(text, PIECE_CHARACTERS)
            return _joined([encoding.encode_to_numpy(one, disallowed_special=()) for one in pieces])

        return encode
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
            parts = list(cut_text(text, LIBRARY_CHARACTERS))
        elif len(text) > LONGEST_UNBROKEN:
            raise ValueError(
                f"expected a document of at most {LONGEST_UNBROKEN:,} characters for this "
                f"tokenizer, got {len(text):,}: split it with <|endoftext|>"
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
