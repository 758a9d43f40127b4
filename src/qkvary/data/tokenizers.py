"""Tokenizers: characters, bytes, SentencePiece pieces, and their common protocol.

A token can be a part of a character, so join the bytes of tokens before decoding them. This module
reads no files.
"""

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from qkvary.data.byte_pairs import BytePairTokenizer, text_bytes
from qkvary.data.library_tokenizers import LibraryTokenizer

_BYTE_PIECE = re.compile(rb"<0x([0-9A-F]{2})>")
CONTROL_TOKENS = 3
"""Number of control tokens (unknown, beginning, end), which come first in the vocabulary and never
occur in a text."""
UNKNOWN = 0
PREFIX = b" "
"""The space that is put before a text."""
DOCUMENT_END = "<|endoftext|>"
"""The separator between the documents of a text."""


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of every tokenizer."""

    @property
    def vocabulary(self) -> int:
        """The number of distinct tokens."""
        ...

    @property
    def beginning(self) -> int | None:
        """The token that begins every text, if there is one."""
        ...

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        ...

    @property
    def separator(self) -> int | None:
        """The token after every document of a training text, if there is one."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, after the beginning token if there is one.

        Raises:
            ValueError: if the text cannot be encoded.
        """
        ...

    def piece(self, token: int, *, after: int | None = None) -> bytes:
        """Return the bytes that a token adds to a text.

        A token can lose its leading space at the start of a text. ``after`` is the token before it.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return JSON-ready data from which ``make_tokenizer`` builds an equal tokenizer."""
        ...


def encode_document(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a document, or raise ``ValueError`` if it cannot be encoded.

    If the tokenizer has a beginning token, the tokens start with it. Otherwise they end with the
    separator. The two are not combined: networks of llama2.c have a beginning token, but were
    trained without a separator.
    """
    separator = tokenizer.separator if tokenizer.beginning is None else None
    return tokenizer.encode(text) + ([] if separator is None else [separator])


class _Separable:
    """Base class of tokenizers whose last token can be a separator. A separator ends a document."""

    beginning: int | None = None

    def __init__(self, tokens: int, *, has_separator: bool) -> None:
        self.separator = tokens if has_separator else None
        self.ends = (tokens,) if has_separator else ()
        self.vocabulary = tokens + has_separator
        self._description = {"has_separator": True} if has_separator else {}


class CharacterTokenizer(_Separable):
    """One token per character. A token is the index of its character in an alphabet."""

    def __init__(self, alphabet: str, *, has_separator: bool = False) -> None:
        """Make a tokenizer for the characters of ``alphabet``, which must all be different."""
        if not alphabet or len(set(alphabet)) != len(alphabet):
            raise ValueError(
                "expected an alphabet of distinct characters, got an empty alphabet or one with a "
                "repeated character"
            )
        text_bytes(alphabet)
        super().__init__(len(alphabet), has_separator=has_separator)
        self.alphabet = alphabet
        self._numbers = {letter: number for number, letter in enumerate(alphabet)}

    def encode(self, text: str) -> list[int]:
        """Return the index of every character, or raise ``ValueError`` for an unknown one."""
        try:
            return [self._numbers[letter] for letter in text]
        except KeyError as error:
            raise ValueError(
                f"expected one of the {len(self.alphabet)} characters of this model, "
                f"got {error.args[0]!r}; choices: {self.alphabet!r}"
            ) from None

    # The protocol Tokenizer has ``after``, which changes nothing here.
    def piece(self, token: int, *, after: int | None = None) -> bytes:  # noqa: ARG002
        """Return the character in UTF-8; the separator has no bytes."""
        return b"" if token == self.separator else self.alphabet[token].encode()

    def describe(self) -> dict[str, Any]:
        """Return the kind, the alphabet, and whether there is a separator."""
        return {"kind": "characters", "alphabet": self.alphabet, **self._description}


class ByteTokenizer(_Separable):
    """One token per byte, for any text.

    Tokens 0 to 255 are the bytes of UTF-8; the optional separator is 256.
    """

    def __init__(self, *, has_separator: bool = False) -> None:
        super().__init__(256, has_separator=has_separator)

    def encode(self, text: str) -> list[int]:
        """Return the bytes of the text."""
        return list(text_bytes(text))

    # The protocol Tokenizer has ``after``, which changes nothing here.
    def piece(self, token: int, *, after: int | None = None) -> bytes:  # noqa: ARG002
        """Return the byte of a token; the separator has no byte."""
        return b"" if token == self.separator else bytes((token,))

    def describe(self) -> dict[str, Any]:
        """Return the kind of tokenizer, and whether it has a separator."""
        return {"kind": "bytes", **self._description}


class PieceTokenizer:
    """Byte pair tokenizer of SentencePiece, which merges neighbours by the score of their piece.

    Tokens 0, 1 and 2 are the unknown token, the beginning and the end. A beginning token inside a
    text also ends the preceding text. A character without a piece becomes the tokens of its bytes;
    for example, a line feed becomes ``<0x0A>``. If there are no byte pieces, a run of such
    characters becomes one unknown token. A tokenizer whose pieces are all single characters is a
    character model.

    Source: Kudo and Richardson 2018, SentencePiece, in the form that karpathy/llama2.c stores.
    """

    ends: tuple[int, ...] = (1, 2)
    separator: int | None = 2

    def __init__(
        self,
        pieces: Sequence[bytes],
        scores: Sequence[float],
        *,
        joins_spaces: bool = False,
        adds_space: bool = True,
        adds_beginning: bool = True,
    ) -> None:
        """Number the pieces in the given order; the piece with the highest score is merged first.

        With ``joins_spaces``, spaces at the ends of a text are removed, and a run of spaces becomes
        one space. Then ``adds_space`` and ``adds_beginning`` put a space and the beginning token
        before the text.
        """
        if len(pieces) != len(scores):
            raise ValueError(
                f"expected a score for each of {len(pieces)} pieces, got {len(scores)}"
            )
        if not all(map(math.isfinite, scores)):
            raise ValueError("expected only finite scores, got a score that is infinite or NaN")
        self.pieces, self.scores, self.vocabulary = tuple(pieces), tuple(scores), len(pieces)
        self.joins_spaces, self.adds_space = joins_spaces, adds_space
        self.beginning: int | None = 1 if adds_beginning else None
        self._starts = (1,) if adds_beginning else (None, 1, 2)
        self._bytes: dict[int, int] = {}
        self._found: dict[bytes, int] = {}
        for token, piece in enumerate(pieces):
            match = _BYTE_PIECE.fullmatch(piece)
            if match:
                self._bytes[token] = int(match[1], 16)
            elif token >= CONTROL_TOKENS:
                self._found.setdefault(piece, token)
        self._byte_tokens = {byte: token for token, byte in self._bytes.items()}
        if len(self._byte_tokens) not in (0, 256):
            raise ValueError(
                "expected tokens for all 256 bytes or for no bytes, got tokens for "
                f"{len(self._byte_tokens)} bytes"
            )

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the text, after the beginning token if the options add it."""
        text_bytes(text)
        start = [] if self.beginning is None else [self.beginning]
        if self.joins_spaces:
            text = re.sub(" +", " ", text).strip(" ")
        space = " " if self.adds_space else ""
        return start if not text else start + self._merge(self._characters(space + text))

    def piece(self, token: int, *, after: int | None = None) -> bytes:
        """Return the bytes of a piece, without the added space at the beginning of a text."""
        if token < CONTROL_TOKENS:
            return b""
        if token in self._bytes:
            return bytes((self._bytes[token],))
        piece = self.pieces[token]
        is_first = self.adds_space and after in self._starts
        return piece.removeprefix(PREFIX) if is_first else piece

    def describe(self) -> dict[str, Any]:
        """Return the pieces in hexadecimal, the scores, and the options of the tokenizer."""
        # The usual values are omitted.
        added = {"adds_space": self.adds_space, "adds_beginning": self.beginning is not None}
        return {
            "kind": "pieces",
            "joins_spaces": self.joins_spaces,
            **{name: value for name, value in added.items() if not value},
            "pieces": [piece.hex() for piece in self.pieces],
            "scores": list(self.scores),
        }

    def _characters(self, text: str) -> list[int]:
        tokens: list[int] = []
        for letter in text:
            data = letter.encode()
            token = self._found.get(data)
            if token is not None:
                tokens.append(token)
            elif self._byte_tokens:
                tokens += [self._byte_tokens[byte] for byte in data]
            elif tokens[-1:] != [UNKNOWN]:
                tokens.append(UNKNOWN)
        return tokens

    def _merge(self, tokens: list[int]) -> list[int]:
        """Merge neighbours while pieces for them exist, by highest score and then from the left."""
        merged: list[int | None] = list(tokens)
        before = [index - 1 for index in range(len(tokens))]
        behind = [index + 1 for index in range(len(tokens))]
        waiting: list[tuple[float, int, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right >= len(merged):
                return
            first, second = merged[left], merged[right]
            if first is None or second is None or UNKNOWN in (first, second):
                return
            if {first, second} & self._bytes.keys():
                return
            joined = self._found.get(self.pieces[first] + self.pieces[second])
            if joined is not None:
                heapq.heappush(waiting, (-self.scores[joined], left, right, first, second))

        for left, right in pairwise(range(len(tokens))):
            offer(left, right)
        while waiting:
            _, left, right, first, second = heapq.heappop(waiting)
            if (merged[left], merged[right]) != (first, second) or behind[left] != right:
                continue
            merged[left] = self._found[self.pieces[first] + self.pieces[second]]
            merged[right] = None
            behind[left] = behind[right]
            if behind[right] < len(merged):
                before[behind[right]] = left
            offer(before[left], left)
            offer(left, behind[left])
        return [token for token in merged if token is not None]


def make_tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    """Build a tokenizer from its description, or raise a ``ValueError`` if it is invalid."""
    kind, has_separator = description.get("kind"), description.get("has_separator") is True
    try:
        if kind == "bytes":
            return ByteTokenizer(has_separator=has_separator)
        if kind == "characters":
            return CharacterTokenizer(_text(description["alphabet"]), has_separator=has_separator)
        if kind == "byte-pairs":
            return BytePairTokenizer(_text(description["merges"]))
        if kind == "library":
            content = _text(description["content"])
            return LibraryTokenizer(content, separator=_text(description["separator"]))
        if kind == "pieces":
            pieces = [bytes.fromhex(piece) for piece in description["pieces"]]
            scores = [float(score) for score in description["scores"]]
            return PieceTokenizer(
                pieces,
                scores,
                joins_spaces=description["joins_spaces"] is True,
                adds_space=description.get("adds_space") is not False,
                adds_beginning=description.get("adds_beginning") is not False,
            )
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected a valid tokenizer of kind {kind}, got: {error}") from error
    raise ValueError(
        f"expected a tokenizer of a known kind, got {kind!r}; choices: characters, bytes, pieces, "
        "byte-pairs, library"
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
