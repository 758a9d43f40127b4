"""Benchmark contamination: finds questions that share a run of words with a training set.

The questions are indexed, and the training text is streamed past the index, so that memory does not
grow with the training text.

Source: Brown et al. 2020, appendix C.
"""

import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from qkvary.data.prepared import PreparedData, TokenSplit
from qkvary.data.token_bytes import find_boundary_tokens, list_token_bytes
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.text.progress_line import Progress, ignore

RUN = 13
"""Length in words of the runs that are compared."""
LONGEST_WORD = 2**16
"""Longer stretches without a space may be split, because the text is read in parts."""

_BLOCK = 2**18
_REMEMBERED = 2**10
"""Number of words kept of a long run of known words."""
_BORDER = ""
"""Marks the border between two documents; it is not a word."""
_WORD = re.compile(r"[^\W_]+")
_APOSTROPHES = str.maketrans("", "", "'’")


def split_words(text: str) -> list[str]:
    """Return the words of a text: runs of letters and digits of any script, in lower case.

    Apostrophes are removed, so that "don't" is one word; any other character separates words.
    Letters with several Unicode spellings are normalised.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.translate(_APOSTROPHES).casefold())


class TrainingText:
    """The words of the training split of a prepared set."""

    def __init__(self, data: PreparedData) -> None:
        if "train" not in data.splits:
            raise UsageError(
                f"expected a set with a training split, got {data.path} with "
                f"{', '.join(data.splits) or 'no split'}"
            )
        self.data, self.split = data, data.splits["train"]

    def find(self, questions: Sequence[str], *, on_progress: Progress = ignore) -> list[bool]:
        """Return for each question whether it shares ``RUN`` consecutive words with a document.

        A shorter question counts if all its words occur consecutively in a document; a question
        without words never does. ``on_progress`` counts the tokens of the set.
        """
        owners: dict[tuple[str, ...], list[int]] = {}
        for number, question in enumerate(questions):
            asked = split_words(question)
            size = min(RUN, len(asked))
            for start in range(len(asked) - size + 1 if size else 0):
                owners.setdefault(tuple(asked[start : start + size]), []).append(number)
        known, sizes = {*chain.from_iterable(owners)}, sorted({*map(len, owners)})
        shared = [False] * len(questions)
        tokenizer = self.data.tokenizer
        pieces = list_token_bytes(tokenizer, find_boundary_tokens(tokenizer, self.data.separator))
        parts = _read_words(_decode(self.split, pieces, on_progress))
        # The words at the end, as long as all of them occur in questions.
        recent: list[str] = []
        for word in chain.from_iterable(parts):
            if word not in known:
                recent.clear()
                continue
            recent.append(word)
            for size in sizes:
                if size <= len(recent):
                    for number in owners.get(tuple(recent[-size:]), ()):
                        shared[number] = True
            if len(recent) > _REMEMBERED:
                del recent[:-RUN]
        return shared

    def describe(self) -> dict[str, JsonValue]:
        """Return the identity of the text, and the number of consecutive words compared."""
        return {
            "data": str(self.data.path),
            "name": self.data.name,
            "fingerprint": self.data.fingerprint,
            "documents": self.split.documents,
            "tokens": self.split.tokens,
            "words_in_a_row": RUN,
        }


def _decode(
    split: TokenSplit, pieces: Sequence[bytes], on_progress: Progress
) -> Iterator[tuple[str, bool]]:
    """Yield the documents in parts, each with a flag: whether the part ends its document."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ends, read = split.document_starts[1:], 0
    for block in split.blocks(_BLOCK):
        first, last = np.searchsorted(ends, (read, read + len(block)), side="right")
        tokens, begin = block.tolist(), 0
        for end in (ends[first:last] - read).tolist():
            data = b"".join([pieces[token] for token in tokens[begin:end]])
            yield decoder.decode(data, final=True), True
            begin = end
        data = b"".join([pieces[token] for token in tokens[begin:]])
        yield decoder.decode(data), False
        read += len(block)
        on_progress(read, split.tokens)


def _read_words(parts: Iterable[tuple[str, bool]]) -> Iterator[list[str]]:
    held = ""
    for part, is_end in parts:
        text = held + part
        if is_end:
            held = ""
            yield [*split_words(text), _BORDER]
        else:
            cut = _find_cut(text)
            held = text[cut:]
            yield split_words(text[:cut])


def _find_cut(text: str) -> int:
    """Return the start of the last word, which the next part may continue."""
    for place in range(len(text), max(0, len(text) - LONGEST_WORD), -1):
        if text[place - 1].isspace():
            return place
    return len(text) if len(text) > LONGEST_WORD else 0
