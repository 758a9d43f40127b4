"""Fast encoding of documents to token arrays.

A long document is split before a space or line feed that follows a character other than whitespace.
This is done only for tokenizers that never merge across such a split, so the tokens equal those of
the whole document.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.documents import Document, digest_of
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import ByteTokenizer, Tokenizer, encode_document
from qkvary.storage.errors import UsageError

Tokens = NDArray[Any]
PIECE_CHARACTERS = 2**20
"""Minimum number of characters of each part of a long document."""
LIBRARY_CHARACTERS = 2**16
"""Minimum characters of each part for the ``tokenizers`` library, which is slow on long texts."""
LONGEST_UNBROKEN = 2**24
"""Maximum number of characters without whitespace that a tokenizer may receive."""
LETTERS_PER_TOKEN = 32
"""Characters that ``encode_start`` first encodes per requested token. It doubles them if needed."""
SPARE_TOKENS = 16
"""Number of tokens at the end of a shortened text that may differ from those of the whole text."""
# Every library treats these two as whitespace.
_BREAK = re.compile(r"(?<=\S)[ \n]")


class EncodedDocument(NamedTuple):
    """The tokens of a document."""

    tokens: Tokens
    """The tokens; the last one is the separator."""
    text_bytes: int
    digest: int
    """The first 8 bytes of the sha256 of the stripped text."""


def token_width(vocabulary: int) -> int:
    """Return the number of bytes per stored token."""
    return 2 if vocabulary <= 2**16 else 4


def encode_start(tokenizer: Tokenizer, document: Document, *, tokens: int) -> list[int]:
    """Return at least the first ``tokens`` tokens of a document, or all tokens if it is shorter.

    These ``tokens`` tokens equal the first tokens of the whole document.
    """
    letters = LETTERS_PER_TOKEN * tokens
    try:
        while True:
            found = encode_document(tokenizer, document.text[:letters])
            if len(found) >= tokens + SPARE_TOKENS or letters >= len(document.text):
                return found
            letters *= 2
    except ValueError as error:
        raise UsageError(f"{document.where} cannot be encoded: {error}") from error


def encode_documents(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[EncodedDocument]:
    """Return the tokens of each document; thread-safe."""
    if tokenizer.separator is None:
        raise UsageError("expected a tokenizer with a separator, got a tokenizer without one")
    separator = np.array([tokenizer.separator], dtype=np.uint32)
    parts: list[Tokens] = []
    for document in documents:
        try:
            parts += _encode(tokenizer, document.text), separator
        except ValueError as error:
            raise UsageError(f"{document.where}: {error}") from None
    # One array for all documents: for short documents, an array costs more than the tokens.
    together = np.concatenate(parts)
    together = together.astype(f"<u{token_width(tokenizer.vocabulary)}")
    found: list[EncodedDocument] = []
    start = 0
    for document, part in zip(documents, parts[::2], strict=True):
        end = start + len(part) + 1
        size, digest = len(document.text.encode()), digest_of(document.text)
        found.append(EncodedDocument(together[start:end], size, digest))
        start = end
    return found


def cut_text(text: str, length: int) -> Iterator[str]:
    """Split a text before whitespace into parts of about ``length`` characters."""
    start = 0
    while start < len(text):
        found = _BREAK.search(text, start + length) if len(text) - start > length else None
        end = found.start() if found else len(text)
        # The lookbehind also sees the character before ``start + length``.
        if end - start > LONGEST_UNBROKEN + length:
            raise ValueError(
                f"expected a space within {LONGEST_UNBROKEN:,} characters, got none; use the "
                "tokenizer named `bytes` for such a text"
            )
        yield text[start:end]
        start = end


def _encode(tokenizer: Tokenizer, text: str) -> Tokens:
    if isinstance(tokenizer, ByteTokenizer):
        return np.frombuffer(text.encode(), dtype=np.uint8)
    if isinstance(tokenizer, BytePairTokenizer):
        encode = tokenizer.encoding.encode_to_numpy
        parts = [encode(part, disallowed_special=()) for part in cut_text(text, PIECE_CHARACTERS)]
    elif isinstance(tokenizer, LibraryTokenizer) and tokenizer.cuts_at_spaces:
        pieces = cut_text(text, LIBRARY_CHARACTERS)
        parts = [np.array(tokenizer.encode(piece), dtype=np.uint32) for piece in pieces]
    elif isinstance(tokenizer, LibraryTokenizer) and len(text) > LONGEST_UNBROKEN:
        raise ValueError(
            f"expected a document of at most {LONGEST_UNBROKEN:,} characters for this tokenizer, "
            f"got {len(text):,}: split it with <|endoftext|>"
        )
    else:
        parts = [np.array(tokenizer.encode(text), dtype=np.uint32)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
