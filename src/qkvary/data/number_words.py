"""Spells the numbers from 1 to 9,999 as one sequence of words.

The words equal those of fastai's ``human_numbers``, but are generated here. They contain no hyphens
and no "and". The data set of fastai leaves out 8000.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

END = "."
"""The word between two numbers."""
LAST = 9_999
LEFT_OUT = 8_000
"""The number that fastai's ``human_numbers`` leaves out."""
_BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_FROM_TWENTY = "twenty thirty forty fifty sixty seventy eighty ninety"
_UNITS, _TENS = _BELOW_TWENTY.split(), _FROM_TWENTY.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class WordSequence:
    """A sequence of words, each as its index in the vocabulary."""

    vocabulary: tuple[str, ...]
    """The distinct words in the order of their first occurrence; a word's id is its index."""
    codes: NDArray[np.int64]


def _spell(number: int) -> list[str]:
    """Return the words of a number from 1 to 9,999."""
    words: list[str] = []
    for size, name in ((1000, "thousand"), (100, "hundred")):
        count, number = divmod(number, size)
        words += [_UNITS[count], name] if count else []
    tens, units = divmod(number, 10) if number >= len(_UNITS) else (0, number)
    words += [_TENS[tens - 2]] if tens else []
    return words + ([_UNITS[units]] if units else [])


@functools.cache
def load_number_words(*, complete: bool) -> WordSequence:
    """Return the words of all numbers, and ``END`` between two numbers.

    The sequence has 63,095 words, or 63,098 if ``complete``.
    """
    words: list[str] = []
    for number in range(1, LAST + 1):
        if complete or number != LEFT_OUT:
            words += [*_spell(number), END]
    words.pop()
    index = {word: code for code, word in enumerate(dict.fromkeys(words))}
    codes = np.array([index[word] for word in words], dtype=np.int64)
    codes.flags.writeable = False
    return WordSequence(vocabulary=tuple(index), codes=codes)
