"""Draws sequences of key-value pairs and queries, the input of associative recall.

Source: Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models",
section 4 and its code with ``random_non_queries=False``, which fills unused positions with zeros.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.data.rows import random_words
from qkvary.data.splits import DataSplit

NO_ANSWER = -1
"""The entry of ``RecallSequences.pairs`` at positions without a query."""
_ROWS = 1_024
"""Number of sequences per batch. Each batch is drawn from its own random stream."""


class RecallSequences(NamedTuple):
    """Sequences, and the pairs that their queries ask for."""

    tokens: NDArray[np.int32]
    """``[count, length]``: the key and the value of each pair, then the queried keys and zeros."""
    pairs: NDArray[np.int32]
    """``[count, length]``: the index of the pair queried at each position, or ``NO_ANSWER``."""


def draw_recall(
    *,
    seed: int,
    length: int,
    pairs: int,
    vocabulary: int,
    power: float,
    split: DataSplit,
    count: int,
) -> RecallSequences:
    """Draw ``count`` sequences, always the same ones for the same arguments.

    A sequence begins with ``pairs`` pairs of a key and a value. Keys are distinct, from 1 to
    ``vocabulary // 2 - 1``; values are distinct and larger. After the pairs, each key is queried
    once, ``2 g`` positions after the end of the pairs. The distances ``g`` are drawn without
    replacement, in the order of the pairs, with probabilities proportional to
    ``(g + 1) ** (power - 1)``.

    A larger ``count`` adds sequences and keeps the first ones. ``tasks.config.RecallTaskConfig``
    defines the allowed sizes.
    """
    purpose = ("recall", seed, length, pairs, vocabulary, str(power), split)
    per_row, first_value = 2 * pairs + (length - 2 * pairs) // 2, vocabulary // 2
    blocks: list[RecallSequences] = []
    for number in range(-(-count // _ROWS)):
        words = random_words(_ROWS * per_row, *purpose, number).reshape(_ROWS, -1)
        keys = 1 + _draw_distinct(words[:, :pairs], first_value - 1)
        values = first_value + _draw_distinct(words[:, pairs : 2 * pairs], vocabulary - first_value)
        tokens = np.zeros((_ROWS, length), dtype=np.int32)
        queried = np.full((_ROWS, length), NO_ANSWER, dtype=np.int32)
        tokens[:, 0 : 2 * pairs : 2] = keys
        tokens[:, 1 : 2 * pairs : 2] = values
        columns = 2 * (pairs + _draw_distances(words[:, 2 * pairs :], pairs, power))
        np.put_along_axis(tokens, columns, keys, axis=1)
        np.put_along_axis(queried, columns, np.arange(pairs, dtype=np.int32)[None], axis=1)
        blocks.append(RecallSequences(tokens, queried))
    return RecallSequences(*(np.concatenate(parts)[:count] for parts in zip(*blocks, strict=True)))


def _draw_distinct(words: NDArray[np.uint64], below: int) -> NDArray[np.int32]:
    """Return distinct numbers in ``[0, below)`` for each row of words, uniform over all choices."""
    found = np.zeros((len(words), 0), dtype=np.int64)
    for column in range(words.shape[1]):
        # ``number`` counts the columns that are left; each smaller column that is taken moves it up
        # by one.
        number = (words[:, column] % np.uint64(below - column)).astype(np.int64)
        for taken in np.sort(found, axis=1).T:
            number += number >= taken
        found = np.column_stack((found, number))
    return found.astype(np.int32)


def _draw_distances(words: NDArray[np.uint64], pairs: int, power: float) -> NDArray[np.int64]:
    """Draw distinct distances without replacement, and return them in the order of the draws.

    Each distance gets an exponentially distributed time, whose rate is proportional to the
    distance's probability. The distances with the smallest times are returned, sorted by time. This
    order is distributed like successive draws (Efraimidis and Spirakis 2006).
    """
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    rates = np.arange(1, words.shape[1] + 1) ** (power - 1.0)
    return np.argsort(-np.log(uniform) / rates, axis=1, kind="stable")[:, :pairs]


@functools.cache
def score_positions(length: int, pairs: int, power: float) -> float:
    """Return the best accuracy of a solver that sees the position of a query but no tokens.

    The solver answers with the value of the pair that is most likely queried at that position.

    In ``_draw_distances``, every distance ``g`` has an exponential time with a rate ``r_g``. Pair
    ``n``, counted from 0, gets distance ``g`` if exactly ``n`` other distances have a smaller time.
    The probability of this is ``integral of r_g exp(-r_g t) P(n other times are below t) dt``.

    For each distance, the solver chooses the pair with the largest probability. Every pair is
    queried once, so the accuracy is the sum of these probabilities, divided by the number of pairs.
    """
    rates = np.arange(1, (length - 2 * pairs) // 2 + 1) ** (power - 1.0)
    # With t = exp(s), the integrand is smooth and vanishes at both ends: equal steps suffice.
    step = 0.25
    times = np.exp(np.arange(-30.0, 4.0 - np.log(rates[-1]), step))
    rang = -np.expm1(-rates[:, None] * times)
    number = np.zeros((pairs, len(times)))
    number[0] = 1.0
    weights = step * rates[:, None] * times * np.exp(-rates[:, None] * times)
    likeliest = [
        (others @ weight).max()
        for others, weight in zip(_count_others(rang, number), weights, strict=True)
    ]
    return float(np.sum(likeliest)) / pairs


def _count_others(
    rang: NDArray[np.float64], number: NDArray[np.float64]
) -> Iterator[NDArray[np.float64]]:
    """For each event, yield the distribution of the number of other events that have happened.

    ``rang`` contains the probability of each event, ``[events, times]``. ``number`` contains the
    distribution of the number of events outside ``rang`` that have happened, ``[numbers, times]``.
    """
    if len(rang) == 1:
        yield number
        return
    halves = np.array_split(rang, 2)
    for own, others in zip(halves, reversed(halves), strict=True):
        found = number
        for share in others:
            more = found * (1.0 - share)
            more[1:] += found[:-1] * share
            found = more
        yield from _count_others(own, found)
