"""Text as it comes: bytes become characters once they are whole, and stop strings are held back.

Torch-free. Knows no tokens.
"""

import codecs
from collections.abc import Sequence

from qkvary.data.tokenizers import Tokenizer


class TextStream:
    """The text of one request, piece by piece.

    All pieces together are the whole text: bytes that are no UTF-8 become the replacement
    character, as they would in one go, and nothing is shown that a stop string takes back.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        """Start empty.

        Args:
            stop: The text ends before the first of these.
        """
        self.stopped = False
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes) -> str:
        """Take the bytes of a token and return what can be shown now."""
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """Return what was held back; nothing more will come."""
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
    """Where a text ends by its stop strings; ``None`` where none of them is in it.

    Of several the one that is complete first counts, and of these the longest, so that it does not
    matter how the text was cut.
    """
    found = [(text.find(one), len(one)) for one in stop]
    ends = [(start + length, start) for start, length in found if start >= 0]
    return min(ends)[1] if ends else None


def spell(tokenizer: Tokenizer, tokens: Sequence[int], *, after: int | None = None) -> str:
    """The text of some tokens.

    Args:
        tokenizer: What they are tokens of.
        tokens: Any.
        after: The token before the first.
    """
    before = [after, *tokens][: len(tokens)]
    pieces = (tokenizer.piece(token, after=one) for token, one in zip(tokens, before, strict=True))
    return b"".join(pieces).decode("utf-8", "replace")


def _longest_start(text: str, stop: Sequence[str]) -> int:
    """How many of the last characters may be the start of a stop string."""
    longest = max((len(one) - 1 for one in stop), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(one.startswith(text[len(text) - length :]) for one in stop if len(one) > length):
            return length
    return 0
