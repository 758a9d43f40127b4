"""A text as tokens: where its documents begin, which tokens are text, and how many bytes they are.

Reads files of text and prepared sets. Knows tokenizers, not networks.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkvary.data.documents import FileDocuments
from qkvary.data.pieces import TokenBytes, find_marks, measure_tokens
from qkvary.data.prepared import open_prepared
from qkvary.data.sources import list_files
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Documents one behind the other, each with what begins and ends it."""

    tokens: NDArray[np.int64]
    """Of all documents."""
    starts: NDArray[np.int64]
    """Where each begins, and the end of the last: one more than documents."""
    token_bytes: TokenBytes
    """UTF-8 bytes that each token of the vocabulary stands for."""
    marks: NDArray[np.bool_]
    """Which tokens of the vocabulary mark beginnings and ends, and are no text."""
    separator: int | None
    """The token that ends documents, and pads rows; ``None`` where there is none."""

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    def spans(self, *, joined: bool = False) -> NDArray[np.int64]:
        """Where what is read as a whole begins and ends: [documents, 2], or all as one.

        Args:
            joined: Whether documents are read one behind the other, as a packed network saw them.
        """
        if joined:
            return np.array([[0, len(self.tokens)]])
        return np.stack((self.starts[:-1], self.starts[1:]), axis=1)

    def is_mark(self) -> NDArray[np.bool_]:
        """Which tokens begin or end a document."""
        return self.marks[self.tokens]

    def count_bytes(self, chosen: NDArray[np.bool_]) -> int:
        """The UTF-8 bytes of the text that chosen tokens stand for.

        Args:
            chosen: One for each token.
        """
        before = np.append(self.token_bytes.opening, self.tokens[:-1])
        return int(self.token_bytes.of(self.tokens, before)[chosen].sum())

    def cut(self, tokens: int) -> "Text":
        """The first tokens of the text."""
        if tokens >= len(self.tokens):
            return self
        starts = np.append(self.starts[self.starts < tokens], tokens)
        return dataclasses.replace(self, tokens=self.tokens[:tokens], starts=starts)


def make_text(tokenizer: Tokenizer, documents: Iterable[str]) -> Text:
    """Encode documents, each begun as the tokenizer does, or else ended by its separator.

    What a beginning marks off is not ended too: networks of llama2.c have never seen an end.

    Args:
        tokenizer: Of the network.
        documents: Texts.

    Raises:
        UsageError: if there is nothing in them, or something that no token stands for.
    """
    parts: list[NDArray[np.int64]] = []
    separator = tokenizer.separator if tokenizer.beginning is None else None
    end = [] if separator is None else [separator]
    for number, document in enumerate(documents, start=1):
        try:
            parts.append(np.array(tokenizer.encode(document) + end, dtype=np.int64))
        except ValueError as error:
            raise UsageError(f"document {number} cannot be encoded: {error}") from error
    if not sum(map(len, parts)):
        raise UsageError("expected a text, got nothing in it")
    starts = np.cumsum([0, *map(len, parts)])
    return wrap_tokens(tokenizer, np.concatenate(parts), starts, separator=tokenizer.separator)


def wrap_tokens(
    tokenizer: Tokenizer,
    tokens: NDArray[np.int64],
    starts: NDArray[np.int64],
    *,
    separator: int | None,
) -> Text:
    """A text whose tokens are there already.

    Args:
        tokenizer: What made them.
        tokens: Of all documents.
        starts: Where each begins, and the end of the last.
        separator: The token between documents.
    """
    marks = find_marks(tokenizer, separator)
    return Text(
        tokens=tokens,
        starts=np.asarray(starts, dtype=np.int64),
        token_bytes=measure_tokens(tokenizer, marks),
        marks=marks,
        separator=separator,
    )


def open_split(path: Path, name: str, *, most: int | None = None) -> tuple[Tokenizer, Text]:
    """A split of a prepared set, and what made its tokens.

    Args:
        path: Of the set.
        name: Of the split.
        most: Tokens that are read at most, the first ones.

    Raises:
        UsageError: if there is no such set or split.
        DamagedError: if it is damaged.
    """
    data = open_prepared(path)
    if name not in data.splits:
        raise UsageError(
            f"expected a split of {path}, got {name!r}; choices: {', '.join(data.splits)}"
        )
    split = data.splits[name]
    count = split.tokens if most is None else min(most, split.tokens)
    tokens, starts = split.read(0, count), split.document_starts
    starts = np.append(starts[starts < count], count)
    return data.tokenizer, wrap_tokens(data.tokenizer, tokens, starts, separator=data.separator)


def read_documents(paths: Sequence[Path]) -> Iterator[str]:
    """The documents of files and folders: text, which ``<|endoftext|>`` may mark off, and JSONL.

    Raises:
        UsageError: if there are none, or one cannot be read.
    """
    files = [file for path in paths for file in list_files(path)]
    return (document.text for document in FileDocuments(files=files).read())
