"""A text as tokens, with document boundaries and the number of bytes per token.

Reads prepared sets. Independent of networks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkvary.data.documents import Document
from qkvary.data.encoding import encode_start
from qkvary.data.prepared import open_prepared
from qkvary.data.token_bytes import TokenBytes, count_token_bytes, find_boundary_tokens
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Concatenated documents with their boundary tokens."""

    tokens: NDArray[np.int64]
    starts: NDArray[np.int64]
    """The start of each document, and the end of the last one; [documents + 1]."""
    token_bytes: TokenBytes
    """The number of UTF-8 bytes of each token of the vocabulary."""
    marks: NDArray[np.bool_]
    """Whether each token of the vocabulary marks the beginning or end of a document."""
    separator: int | None
    """The end-of-document token. It also pads rows. ``None`` if the tokenizer has no such token."""
    split: str | None = None
    """The split of the prepared set that the text was read from; ``None`` for other texts."""

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.starts) - 1

    def spans(self, *, joined: bool = False) -> NDArray[np.int64]:
        """Return the start and end of each document, [documents, 2].

        With ``joined``, the whole text counts as a single document.
        """
        if joined:
            return np.array([[0, len(self.tokens)]])
        return np.stack((self.starts[:-1], self.starts[1:]), axis=1)

    def count_bytes(self, chosen: NDArray[np.bool_]) -> int:
        """Return the number of UTF-8 bytes of selected tokens."""
        before = np.append(self.token_bytes.opening, self.tokens[:-1])
        return int(self.token_bytes.of(self.tokens, before)[chosen].sum())


def make_text(tokenizer: Tokenizer, documents: Iterable[str], *, most: int | None = None) -> Text:
    """Encode documents, each with a token that marks where the document begins or ends.

    This is the tokenizer's beginning token if it has one, and otherwise its separator. Only the
    first ``most`` tokens are kept, and encoding stops once there are enough.
    """
    parts: list[NDArray[np.int64]] = []
    left = most
    for number, text in enumerate(documents, start=1):
        document = Document(text, f"document {number}")
        # No text has to be encoded further than its length in characters.
        found = encode_start(tokenizer, document, tokens=len(text) if left is None else left)
        parts.append(np.array(found[:left], dtype=np.int64))
        if left is not None and not (left := left - len(parts[-1])):
            break
    if not sum(map(len, parts)):
        raise UsageError("expected a text, got an empty one")
    starts = np.cumsum([0, *map(len, parts)])
    return _wrap(tokenizer, np.concatenate(parts), starts, separator=tokenizer.separator)


def _wrap(
    tokenizer: Tokenizer,
    tokens: NDArray[np.int64],
    starts: NDArray[np.int64],
    *,
    separator: int | None,
    split: str | None = None,
) -> Text:
    marks = find_boundary_tokens(tokenizer, separator)
    return Text(
        tokens=tokens,
        starts=np.asarray(starts, dtype=np.int64),
        token_bytes=count_token_bytes(tokenizer, marks),
        marks=marks,
        separator=separator,
        split=split,
    )


def open_split(path: Path, name: str, *, most: int | None = None) -> tuple[Tokenizer, Text]:
    """Return the tokenizer and the text of a split of a prepared set.

    If the set has no test split, the validation split is returned in its place.
    """
    data = open_prepared(path)
    name, split = data.find_split(name)
    count = split.tokens if most is None else min(most, split.tokens)
    tokens, starts = split.read(0, count), split.document_starts
    starts = np.append(starts[starts < count], count)
    text = _wrap(data.tokenizer, tokens, starts, separator=data.separator, split=name)
    return data.tokenizer, text
