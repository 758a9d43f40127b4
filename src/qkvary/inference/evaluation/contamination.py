"""Benchmark contamination: finds questions that share a run of words with a training set.

The questions are indexed. Then the training text is read document by document, and its words are
looked up in the index.

Source: Brown et al. 2020, appendix C.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain, pairwise

from qkvary.data.prepared import PreparedData
from qkvary.data.token_bytes import find_boundary_tokens, list_token_bytes
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.text.progress_line import Progress, ignore

RUN = 13
"""Number of consecutive words that a question and a document must share."""
_WORD = re.compile(r"[^\W_]+")
_APOSTROPHES = str.maketrans("", "", "'’")


def split_words(text: str) -> list[str]:
    """Return the words of a text: runs of letters and digits of any script, in lower case.

    Apostrophes are removed, so that "don't" is one word. Unicode is normalised.
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
        """Return True for each question that shares ``RUN`` consecutive words with a document.

        A shorter question gives True if a document contains all its words consecutively.
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
        for start, end in pairwise(self.split.document_starts.tolist()):
            tokens = self.split.read(start, end - start).tolist()
            text = b"".join([pieces[token] for token in tokens]).decode("utf-8", "replace")
            # The words at the end, as long as all of them occur in questions.
            recent: list[str] = []
            for word in split_words(text):
                if word not in known:
                    recent.clear()
                    continue
                recent.append(word)
                for size in sizes:
                    if size <= len(recent):
                        for number in owners.get(tuple(recent[-size:]), ()):
                            shared[number] = True
            on_progress(end, self.split.tokens)
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
