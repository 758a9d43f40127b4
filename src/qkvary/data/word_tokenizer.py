"""A word tokenizer, built from the words of given sentences.

Decoding the tokens of a sentence restores the sentence.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

UNKNOWN, PADDING, BEGIN, END = range(4)
SPECIALS = ("<unk>", "<pad>", "<bos>", "<eos>")
"""The first tokens of every vocabulary, in this order."""

# A token is a word or a mark with the space before it, so that joining tokens restores the
# sentence; an apostrophe inside a word and what follows it form one token.
_TOKEN = re.compile(r" ?\w+|'\w+| ?[^\w\s]")


def split_words(sentence: str) -> list[str]:
    """Return the words and punctuation marks of a sentence, each with the space before it."""
    return _TOKEN.findall(" " + " ".join(sentence.split()))


class WordTokenizer:
    """Word tokenizer. The special tokens come first, then the words, most frequent first."""

    def __init__(self, words: Iterable[str]) -> None:
        """Assign an index to each distinct word, as :func:`split_words` returns them."""
        self.words = (*SPECIALS, *words)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def learn(cls, sentences: Iterable[str], *, min_count: int = 1) -> "WordTokenizer":
        """Return the tokenizer of all words that occur at least ``min_count`` times."""
        counts = Counter(word for sentence in sentences for word in split_words(sentence))
        # Words with equal counts are sorted, so that the order of the sentences does not matter.
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(word for word in order if counts[word] >= min_count)

    @property
    def vocabulary(self) -> int:
        """The number of tokens, the special ones included."""
        return len(self.words)

    def encode(self, sentence: str) -> list[int]:
        """Return the tokens of a sentence, without the begin and end tokens."""
        return [self._numbers.get(word, UNKNOWN) for word in split_words(sentence)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens to a sentence; special tokens other than the unknown token are dropped."""
        shown = (token for token in tokens if token not in (PADDING, BEGIN, END))
        unknown = f" {SPECIALS[UNKNOWN]}"
        words = (unknown if token == UNKNOWN else self.words[token] for token in shown)
        return "".join(words).strip()
