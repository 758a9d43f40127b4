"""Questions that a network may have read before: texts whose runs of words stand in a training set.

Runs of the questions are kept and the training text goes past them, so that memory does not grow
with it. Knows prepared sets and words, not tasks.

Source: Brown et al. 2020, appendix C.
"""

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from qkvary.data.pieces import find_marks, list_pieces
from qkvary.data.places import find_prepared
from qkvary.data.prepared import PreparedData, TokenSplit, open_prepared
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue

RUN = 13
"""So many words in a row are no accident."""
LONGEST_WORD = 2**16
"""A stretch of more characters without a space may be cut: the text is read in parts."""

_BLOCK = 2**18
"""Tokens that are decoded at a time."""
_WORDS = 2**16
"""Words that are looked up at a time."""
_BORDER = ""
"""Stands between two documents, and is no word."""
_WORD = re.compile(r"[^\W_]+")
_APOSTROPHES = str.maketrans("", "", "'’")
_SPREAD, _BASE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)
"""Odd numbers that spread bits; whatever they do, what is found is compared word by word."""

Progress = Callable[[int, int], None]
"""Told how many tokens are read, of how many."""
Numbers = NDArray[np.int32]
"""Words of questions, numbered from 1; 0 is any other word, or the border of a document."""
Keys = NDArray[np.uint64]


def _keep_quiet(_read: int, _total: int) -> None:
    """Tell nobody."""


def split_words(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, of any script, in lower case.

    Apostrophes are left out, so that "don't" is one word; whatever else is no letter or digit
    separates words. Letters that Unicode has several spellings of are spelled in one.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.translate(_APOSTROPHES).casefold())


class TrainingText:
    """The training split of a prepared set, as words."""

    def __init__(self, data: PreparedData) -> None:
        """Find the split; nothing is read yet.

        Raises:
            UsageError: if there is none.
        """
        if "train" not in data.splits:
            raise UsageError(
                f"expected a set with a training split, got {data.path} with "
                f"{', '.join(data.splits) or 'no split'}"
            )
        self.data, self.split = data, data.splits["train"]

    def find(self, questions: Sequence[str], *, tell: Progress = _keep_quiet) -> list[bool]:
        """Which questions share ``RUN`` words in a row with one of the documents.

        A question of fewer words counts if all of them stand in a document in a row; one without
        any never does.

        Args:
            questions: Texts.
            tell: Hears how far it is.
        """
        runs = _Runs([split_words(question) for question in questions])
        waiting: list[int] = []
        for words in _read_words(self._parts(tell)):
            waiting += [runs.numbers.get(word, 0) for word in words]
            if len(waiting) >= _WORDS:
                runs.look_up(np.array(waiting, dtype=np.int32))
                # A run may begin here and end in what comes next.
                waiting = waiting[1 - RUN :]
        runs.look_up(np.array(waiting, dtype=np.int32))
        return runs.found()

    def describe(self) -> dict[str, JsonValue]:
        """Which text it is, and what is looked for in it, for those who read the figures."""
        return {
            "data": str(self.data.path),
            "name": self.data.name,
            "fingerprint": self.data.fingerprint,
            "documents": self.split.documents,
            "tokens": self.split.tokens,
            "words_in_a_row": RUN,
        }

    def _parts(self, tell: Progress) -> Iterator[tuple[str, bool]]:
        tokenizer = self.data.tokenizer
        pieces = list_pieces(tokenizer, find_marks(tokenizer, self.data.separator))
        return _decode(self.split, pieces, tell)


def open_training_text(reference: str) -> TrainingText:
    """The training split of a set.

    Args:
        reference: The path of a prepared set, or its name in the cache.

    Raises:
        UsageError: if there is no such set, or it has no such split.
        DamagedError: if it is damaged.
    """
    return TrainingText(open_prepared(find_prepared(reference)))


# ---- from tokens to words


def _decode(
    split: TokenSplit, pieces: Sequence[bytes], tell: Progress
) -> Iterator[tuple[str, bool]]:
    """The documents in parts, in order, each with whether its document ends with it."""
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
        tell(read, split.tokens)


def _read_words(parts: Iterable[tuple[str, bool]]) -> Iterator[list[str]]:
    """The words of documents that come in parts, with a border behind each document."""
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
    """Where the last word begins that may go on in the next part."""
    for place in range(len(text), max(0, len(text) - LONGEST_WORD), -1):
        if text[place - 1].isspace():
            return place
    return len(text) if len(text) > LONGEST_WORD else 0


# ---- what is looked for


class _Runs:
    """The runs of questions, by their number of words."""

    def __init__(self, questions: Sequence[Sequence[str]]) -> None:
        """Number the words and keep the runs.

        Args:
            questions: The words of each.
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
        """Note which runs stand in a text."""
        mixed = _mix(text)
        keys = np.zeros(len(text) + 1, dtype=np.uint64)
        for size in range(1, min(max(self._tables, default=0), len(text)) + 1):
            keys = keys[:-1] * _BASE + mixed[size - 1 :]
            if size in self._tables:
                self._tables[size].look_up(text, keys)

    def found(self) -> list[bool]:
        """For each question, whether one of its runs was seen."""
        shared = np.zeros(self._count, dtype=np.bool_)
        for table in self._tables.values():
            shared[table.seen_owners()] = True
        return shared.tolist()


def _mix(numbers: Numbers) -> Keys:
    mixed = numbers.astype(np.uint64) * _SPREAD
    return mixed ^ (mixed >> np.uint64(31))


class _Table:
    """Runs of so many words, each once, in the order of their keys."""

    def __init__(self, runs: Numbers, owners: NDArray[np.int64]) -> None:
        """Sort the runs.

        Args:
            runs: [runs, words], some of them more than once.
            owners: The question that each is of.
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
        # Most words of a text are no run's: this says so of nearly all, without a search.
        bits = min(26, (16 * len(rows)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._sieve = np.zeros(2**bits, dtype=np.bool_)
        self._sieve[self._keys >> self._shift] = True

    def look_up(self, text: Numbers, keys: Keys) -> None:
        """Note which of the runs stand in a text.

        Args:
            text: [words].
            keys: Of the run that begins at each word that has enough behind it.
        """
        begins = np.flatnonzero(self._sieve[keys >> self._shift])
        first = np.searchsorted(self._keys, keys[begins], side="left")
        counts = np.searchsorted(self._keys, keys[begins], side="right") - first
        # Runs of equal keys stand together: nearly always there is one, or none.
        for extra in range(int(counts.max(initial=0))):
            chosen = counts > extra
            places = first[chosen] + extra
            words = text[begins[chosen, None] + np.arange(self._rows.shape[1])]
            self._seen[places[(self._rows[places] == words).all(axis=1)]] = True

    def seen_owners(self) -> NDArray[np.int64]:
        """The questions whose runs were seen."""
        return self._owners[self._seen[self._places]]
