"""Turns tokens into text step by step, in whole characters.

Text that may begin a stop string is held back. Never imports torch.
"""

import codecs
from collections.abc import Sequence

from qkvary.data.tokenizers import Tokenizer


class TextStream:
    """The text of one request, built token by token.

    Invalid UTF-8 becomes the replacement character. Text that has been returned is never removed
    later by a stop string.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> str:
        """Add the bytes of a token and return the text that can be shown now."""
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """End the stream, and return the text that has been held back."""
        text = self._release(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        end = find_stop(text, self._stop)
        if end is not None:
            self.stopped, self._held = True, ""
            return text[:end]
        held = _longest_start(text, self._stop)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def find_stop(text: str, stop: Sequence[str]) -> int | None:
    """Return the index at which the first stop string begins, or ``None``.

    The first stop string is the one that is completed first. If several are completed at the same
    character, the longest of them counts. So the result does not depend on token boundaries.
    """
    found = [(text.find(one), len(one)) for one in stop]
    ends = [(start + length, start) for start, length in found if start >= 0]
    return min(ends)[1] if ends else None


def detokenize(tokenizer: Tokenizer, tokens: Sequence[int], *, after: int | None = None) -> str:
    """Return the text of ``tokens``.

    ``after`` is the token before them, on which the start of their text can depend.
    """
    before = [after, *tokens][: len(tokens)]
    pieces = (tokenizer.piece(token, after=one) for token, one in zip(tokens, before, strict=True))
    return b"".join(pieces).decode("utf-8", "replace")


def _longest_start(text: str, stop: Sequence[str]) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of a stop string."""
    longest = max((len(one) - 1 for one in stop), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[len(text) - length :]) for one in stop if len(one) > length):
            return length
    return 0
