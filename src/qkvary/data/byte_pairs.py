"""GPT-2's tokens: bytes of words, joined in the order in which their pairs were once counted.

The list of merges says everything: tokens 0 to 255 are single bytes, one token follows for each
merge, and the last one separates documents. tiktoken does the joining.

Source: Sennrich, Haddow and Birch 2016; Radford et al. 2019, section 2.2, and their public code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkvary.storage.errors import UsageError

if TYPE_CHECKING:
    import tiktoken

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""What is never joined across: GPT-2's expression, written so that it never goes back."""
SEPARATOR = "<|endoftext|>"
_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that stand for themselves in a list of merges; the others are letters from U+0100 on."""


def byte_letters() -> dict[str, int]:
    """The letter for each byte in files of GPT-2, in the order of their tokens."""
    others = [byte for byte in range(256) if byte not in _PLAIN]
    letters = {chr(byte): byte for byte in _PLAIN}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


class BytePairTokenizer:
    """Pairs of neighbours become one token, the first merge of the list first."""

    beginning: int | None = None

    def __init__(self, merges: str) -> None:
        """Number the tokens.

        Args:
            merges: Two pieces in a line, in GPT-2's letters; a first line may state a version.

        Raises:
            ValueError: if a line is something else, or joins what was not there before it.
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
            self._add(line, number)
        self.separator: int | None = len(self.pieces)
        self.ends = (len(self.pieces),)
        self._encoding: tiktoken.Encoding | None = None

    def _add(self, line: str, number: int) -> None:
        first, _, second = line.rstrip("\r").partition(" ")
        if first not in self._names or second not in self._names or first + second in self._names:
            raise ValueError(f"expected two pieces to be joined in merge {number}, got {line!r}")
        self._names[first + second] = len(self.pieces)
        self.pieces.append(self.pieces[self._names[first]] + self.pieces[self._names[second]])

    @property
    def vocabulary(self) -> int:
        """Bytes, merges and the separator."""
        return len(self.pieces) + 1

    def shortened(self, vocabulary: int) -> BytePairTokenizer:
        """The tokenizer of the first merges alone: as many tokens as are asked for.

        Merges are listed in the order in which they were found, so that this is the one that would
        have come out if one had stopped there.

        Raises:
            ValueError: if that is less than bytes and a separator, or more than there are.
        """
        if not 257 <= vocabulary <= self.vocabulary:
            raise ValueError(
                f"expected a vocabulary of 257 to {self.vocabulary:,}, got {vocabulary:,}"
            )
        return BytePairTokenizer("\n".join(self._lines[: vocabulary - 257]))

    @property
    def encoding(self) -> tiktoken.Encoding:
        """What does the joining, made when it is first needed.

        Raises:
            UsageError: if tiktoken is not installed.
        """
        if self._encoding is None:
            self._encoding = self._make()
        return self._encoding

    def _make(self) -> tiktoken.Encoding:
        try:
            # Decoding needs no tiktoken, and the command line must answer without it.
            import tiktoken  # noqa: PLC0415
        except ModuleNotFoundError:
            raise UsageError(
                "tiktoken is not installed: pip install 'qkvary[data]' brings it"
            ) from None
        return tiktoken.Encoding(
            "qkvary",
            pat_str=WORDS,
            mergeable_ranks={piece: token for token, piece in enumerate(self.pieces)},
            special_tokens={SEPARATOR: len(self.pieces)},
        )

    def numbers(self) -> dict[str, int]:
        """The number of every token by its letters, as ``encoder.json`` has it."""
        return {**self._names, SEPARATOR: len(self.pieces)}

    def encode(self, text: str) -> list[int]:
        """The tokens of the text; the separator's letters are a text like any other.

        Raises:
            ValueError: for half of a surrogate pair, which has no bytes.
        """
        text_bytes(text)
        return self.encoding.encode_ordinary(text)

    def piece(self, token: int, *, after: int | None = None) -> bytes:  # noqa: ARG002  see Tokenizer
        """The bytes of a token; the separator adds nothing."""
        return b"" if token == self.separator else self.pieces[token]

    def describe(self) -> dict[str, Any]:
        """The merges."""
        return {"kind": "byte-pairs", "merges": "\n".join(self._lines)}


def text_bytes(text: str) -> bytes:
    """The bytes of a text.

    Raises:
        ValueError: for half of a surrogate pair, which has none.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"expected text, got half of a surrogate pair at character {error.start}"
        ) from error
