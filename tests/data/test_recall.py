"""Sequences of associative recall against plain loops, and their distances against formulas."""

import hashlib
import itertools
import math

import pytest

from qkvary.data.recall import NO_ANSWER, draw_recall, score_positions
from qkvary.data.rows import random_words

PINNED = "e05ff9b4b2990844f47825bbc1c0c20f27d48497613837f338abce05814ad194"
SIZES = {"seed": 3, "length": 21, "pairs": 3, "vocabulary": 17, "power": 0.3, "split": "test"}


def test_sequences_never_change() -> None:
    """Kept records rest on these examples."""
    drawn = draw_recall(
        seed=42, length=64, pairs=4, vocabulary=8_192, power=0.01, split="train", count=2_000
    )
    content = drawn.tokens.astype("<i8").tobytes() + drawn.pairs.astype("<i8").tobytes()
    assert hashlib.sha256(content).hexdigest() == PINNED


def plain_sequence(words: list[int]) -> tuple[list[int], list[int]]:
    """One sequence by the code of the paper, in plain loops on the same random words."""
    length, pairs, vocabulary, power = (
        SIZES[k] for k in ("length", "pairs", "vocabulary", "power")
    )
    keys, values = list(range(1, vocabulary // 2)), list(range(vocabulary // 2, vocabulary))
    keys = [keys.pop(words.pop(0) % len(keys)) for _ in range(pairs)]
    values = [values.pop(words.pop(0) % len(values)) for _ in range(pairs)]
    # The clock of each place; the places ring one after the other.
    clocks = {
        place: -math.log(((word >> 11) + 0.5) / 2**53) / (place + 1) ** (power - 1)
        for place, word in enumerate(words)
    }
    assert len(clocks) == (length - 2 * pairs) // 2
    tokens, queried = [0] * length, [NO_ANSWER] * length
    for pair, place in zip(range(pairs), sorted(clocks, key=clocks.__getitem__), strict=False):
        tokens[2 * pair], tokens[2 * pair + 1] = keys[pair], values[pair]
        tokens[2 * pairs + 2 * place] = keys[pair]
        queried[2 * pairs + 2 * place] = pair
    return tokens, queried


def test_sequences_are_those_of_plain_loops() -> None:
    drawn = draw_recall(**SIZES, count=1_029)
    per_row = 2 * 3 + 7
    for block, rows in ((0, range(40)), (1, range(1_024, 1_029))):
        words = random_words(1_024 * per_row, "recall", 3, 21, 3, 17, "0.3", "test", block)
        for row in rows:
            start = (row % 1_024) * per_row
            tokens, queried = plain_sequence([int(w) for w in words[start : start + per_row]])
            assert drawn.tokens[row].tolist() == tokens
            assert drawn.pairs[row].tolist() == queried


@pytest.mark.parametrize(
    ("length", "pairs", "power"), [(17, 1, 0.01), (23, 4, 0.3), (22, 5, 0.01), (18, 3, 1.0)]
)
def test_the_score_by_position_is_that_of_all_orders(length: int, pairs: int, power: float) -> None:
    """The probability of every order of draws without replacement, in plain loops."""
    places = (length - 2 * pairs) // 2
    rates = [(place + 1) ** (power - 1) for place in range(places)]
    shares = [[0.0] * pairs for _ in rates]
    for order in itertools.permutations(range(places), pairs):
        probability, left = 1.0, sum(rates)
        for place in order:
            probability *= rates[place] / left
            left -= rates[place]
        for pair, place in enumerate(order):
            shares[place][pair] += probability
    assert score_positions(length, pairs, power) == pytest.approx(
        sum(map(max, shares)) / pairs, abs=1e-12
    )
