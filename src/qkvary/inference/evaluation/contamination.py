"""Benchmark contamination: questions whose runs of words occur in a training set.

The questions are indexed and the training text is streamed past them, so that memory does not grow
with the text.

Source: Brown et al. 2020, appendix C.
"""

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from qkvary.data.prepared import PreparedData, TokenSplit, open_prepared
from qkvary.data.prepared_sets import find_prepared
from qkvary.data.token_bytes import find_boundary_tokens, list_token_bytes
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue

RUN = 13
"""The length of a run in words."""
LONGEST_WORD = 2**16
"""Longer stretches without a space may be split: the text is read in parts."""

_BLOCK = 2**18
"""Tokens decoded at a time."""
_WORDS = 2**16
"""Words looked up at a time."""
_BORDER = ""
"""The border between two documents, not a word."""
_WORD = re.compile(r"[^\W_]+")
_APOSTROPHES = str.maketrans("", "", "'’")
_SPREAD, _BASE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
"""Odd constants that spread bits; matches are always confirmed word by word."""

Progress = Callable[[int, int], None]
"""Called with the number of tokens read and their total."""
Numbers = NDArray[np.int32]
"""Words of questions, numbered from 1; 0 is any other word, or the border of a document."""
Keys = NDArray[np.uint64]


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
        """Select the split without reading it.

        Raises:
            UsageError: if the set has no training split.
        """
        if "train" not in data.splits:
            raise UsageError(
                f"expected a set with a training split, got {data.path} with "
                f"{', '.join(data.splits) or 'no split'}"
            )
        self.data, self.split = data, data.splits["train"]

    def find(
        self, questions: Sequence[str], *, on_progress: Progress = lambda _read, _total: None
    ) -> list[bool]:
        """Return for each question whether it shares ``RUN`` consecutive words with a document.

        A shorter question counts if all its words occur consecutively in a document; a question
        without words never does.

        Args:
            questions: The texts.
            on_progress: Called after each block.
        """
        runs = _Runs([split_words(question) for question in questions])
        waiting: list[int] = []
        tokenizer = self.data.tokenizer
        pieces = list_token_bytes(tokenizer, find_boundary_tokens(tokenizer, self.data.separator))
        for words in _read_words(_decode(self.split, pieces, on_progress)):
            waiting += [runs.numbers.get(word, 0) for word in words]
            if len(waiting) >= _WORDS:
                runs.look_up(np.array(waiting, dtype=np.int32))
                # A run may continue in the next words.
                waiting = waiting[1 - RUN :]
        runs.look_up(np.array(waiting, dtype=np.int32))
        return runs.found()

    def describe(self) -> dict[str, JsonValue]:
        """Return the identity of the text and the length of a run, for the results."""
        return {
            "data": str(self.data.path),
            "name": self.data.name,
            "fingerprint": self.data.fingerprint,
            "documents": self.split.documents,
            "tokens": self.split.tokens,
            "words_in_a_row": RUN,
        }


def open_training_text(reference: str) -> TrainingText:
    """Open the training split of a set.

    Args:
        reference: The path of a prepared set, or its name in the cache.

    Raises:
        UsageError: if the set or its training split does not exist.
        DamagedError: if it is damaged.
    """
    return TrainingText(open_prepared(find_prepared(reference)))


# ---- from tokens to words


def _decode(
    split: TokenSplit, pieces: Sequence[bytes], on_progress: Progress
) -> Iterator[tuple[str, bool]]:
    """Yield the documents in parts, each with whether it ends its document."""
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
    """Return where the last word begins that may continue in the next part."""
    for place in range(len(text), max(0, len(text) - LONGEST_WORD), -1):
        if text[place - 1].isspace():
            return place
    return len(text) if len(text) > LONGEST_WORD else 0


# ---- the runs to find


class _Runs:
    def __init__(self, questions: Sequence[Sequence[str]]) -> None:
        """Number the words and store the runs.

        Args:
            questions: The words of each question.
        """
        self.numbers: dict[str, int] = {}
        self._count = len(questions)
        parts: dict[int, list[Numbers]] = {}
        owners: dict[int, list[NDArray[np.int64]]] = {}
        for number, words in enumerate(questions):
            for word in words:
                self.numbers.setdefault(word, len(self.numbers) + 1)
            size = min(RUN, len(words))
            if size:
                row = np.array([self.numbers[word] for word in words], dtype=np.int32)
                runs = np.lib.stride_tricks.sliding_window_view(row, size)
                parts.setdefault(size, []).append(runs)
                owners.setdefault(size, []).append(np.full(len(runs), number))
        self._tables = {
            size: _Table(np.concatenate(parts[size]), np.concatenate(owners[size]))
            for size in sorted(parts)
        }

    def look_up(self, text: Numbers) -> None:
        """Record which runs occur in a text."""
        mixed = _mix(text)
        keys = np.zeros(len(text) + 1, dtype=np.uint64)
        for size in range(1, min(max(self._tables, default=0), len(text)) + 1):
            keys = keys[:-1] * _BASE + mixed[size - 1 :]
            if size in self._tables:
                self._tables[size].look_up(text, keys)

    def found(self) -> list[bool]:
        """Return for each question whether one of its runs was seen."""
        shared = np.zeros(self._count, dtype=np.bool_)
        for table in self._tables.values():
            shared[table.seen_owners()] = True
        return shared.tolist()


def _mix(numbers: Numbers) -> Keys:
    mixed = numbers.astype(np.uint64) * _SPREAD
    return mixed ^ (mixed >> np.uint64(31))


class _Table:
    """Distinct runs of one length, sorted by key."""

    def __init__(self, runs: Numbers, owners: NDArray[np.int64]) -> None:
        """Sort the runs.

        Args:
            runs: [runs, words], with duplicates.
            owners: The question of each run.
        """
        rows, inverse = np.unique(runs, axis=0, return_inverse=True)
        keys = np.zeros(len(rows), dtype=np.uint64)
        for column in rows.T:
            keys = keys * _BASE + _mix(column)
        order = np.argsort(keys)
        self._rows, self._keys = rows[order], keys[order]
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        self._places, self._owners = place[inverse.reshape(-1)], owners
        self._seen = np.zeros(len(order), dtype=np.bool_)
        # A filter that rejects most words of a text without a search.
        bits = min(26, (16 * len(rows)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._sieve = np.zeros(2**bits, dtype=np.bool_)
        self._sieve[self._keys >> self._shift] = True

    def look_up(self, text: Numbers, keys: Keys) -> None:
        """Record which of the runs occur in a text.

        Args:
            text: [words].
            keys: The key of the run at each word that has enough words after it.
        """
        begins = np.flatnonzero(self._sieve[keys >> self._shift])
        first = np.searchsorted(self._keys, keys[begins], side="left")
        counts = np.searchsorted(self._keys, keys[begins], side="right") - first
        # Runs of equal keys are adjacent; nearly always there is one, or none.
        for extra in range(int(counts.max(initial=0))):
            chosen = counts > extra
            places = first[chosen] + extra
            words = text[begins[chosen, None] + np.arange(self._rows.shape[1])]
            self._seen[places[(self._rows[places] == words).all(axis=1)]] = True

    def seen_owners(self) -> NDArray[np.int64]:
        """Return the questions whose runs were seen."""
        return self._owners[self._seen[self._places]]
