"""GPT-2's byte pair encoding; tiktoken applies the merges.

Tokens 0 to 255 are single bytes. One token for each merge follows. The last token separates
documents.

Source: Sennrich, Haddow and Birch 2016; Radford et al. 2019, section 2.2, and their public code.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from qkvary.storage.packages import require

if TYPE_CHECKING:
    import tiktoken

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""GPT-2's pre-tokenization pattern, without backtracking. Merges never cross a match's borders."""
SEPARATOR = "<|endoftext|>"
_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that GPT-2's files write as the character with the same number.

The files write all other bytes as letters from U+0100 on.
"""


def byte_letters() -> dict[str, int]:
    """Return a mapping from each letter in GPT-2's files to its byte, in token order."""
    others = [byte for byte in range(256) if byte not in _PLAIN]
    letters = {chr(byte): byte for byte in _PLAIN}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


class BytePairTokenizer:
    """Byte pair tokenizer, which applies a list of merges; earlier merges take precedence."""

    beginning: int | None = None

    def __init__(self, merges: str) -> None:
        """Parse a text with one merge per line: two pieces, separated by a space.

        Each byte is written as a letter, as in GPT-2's files. The first line may be a version line.
        """
        self._lines = [
            line
            for number, line in enumerate(merges.split("\n"))
            if line.strip() and not (number == 0 and line.startswith("#version"))
        ]
        letters = byte_letters()
        self.pieces = [bytes((byte,)) for byte in letters.values()]
        self._names = {letter: token for token, letter in enumerate(letters)}
        for number, line in enumerate(self._lines, start=1):
            first, _, second = line.rstrip("\r").partition(" ")
            known = first in self._names and second in self._names
            if not known or first + second in self._names:
                raise ValueError(f"expected two known pieces in merge {number}, got {line!r}")
            self._names[first + second] = len(self.pieces)
            self.pieces.append(self.pieces[self._names[first]] + self.pieces[self._names[second]])
        self.separator: int | None = len(self.pieces)
        self.ends = (len(self.pieces),)
        self.vocabulary = len(self.pieces) + 1

    def shortened(self, vocabulary: int) -> "BytePairTokenizer":
        """Return a tokenizer with only the first merges, as if trained to ``vocabulary`` tokens."""
        if not 257 <= vocabulary <= self.vocabulary:
            raise ValueError(
                f"expected a vocabulary of 257 to {self.vocabulary:,}, got {vocabulary:,}"
            )
        return BytePairTokenizer("\n".join(self._lines[: vocabulary - 257]))

    @cached_property
    def encoding(self) -> "tiktoken.Encoding":
        """The tiktoken encoding, built on first use."""
        require("tiktoken")
        # Decoding needs no tiktoken, and the command line must start without it.
        import tiktoken  # noqa: PLC0415

        return tiktoken.Encoding(
            "qkvary",
            pat_str=WORDS,
            mergeable_ranks={piece: token for token, piece in enumerate(self.pieces)},
            special_tokens={SEPARATOR: len(self.pieces)},
        )

    def numbers(self) -> dict[str, int]:
        """Return a mapping from the letters of each token to its index, as in ``encoder.json``."""
        return {**self._names, SEPARATOR: len(self.pieces)}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the text. The separator's name in a text is ordinary text."""
        text_bytes(text)
        return self.encoding.encode_ordinary(text)

    # The protocol Tokenizer has ``after``, which makes no difference here.
    def piece(self, token: int, *, after: int | None = None) -> bytes:  # noqa: ARG002
        """Return the bytes of a token; the separator has no bytes."""
        return b"" if token == self.separator else self.pieces[token]

    def describe(self) -> dict[str, Any]:
        """Return the kind and the merges."""
        return {"kind": "byte-pairs", "merges": "\n".join(self._lines)}


def text_bytes(text: str) -> bytes:
    """Return the UTF-8 bytes of a text."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"expected text, got an unpaired surrogate at character {error.start}"
        ) from error
