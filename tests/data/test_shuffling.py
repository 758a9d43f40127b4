"""A stateless permutation: each index once, uniform, and reproducible."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.data.shuffling import shuffled
from tests.conftest import examples


def order(count: int, *purpose: str | int) -> np.ndarray:
    return shuffled(np.arange(count), count, *purpose)


@examples(50)
@given(count=st.integers(1, 700), seed=st.integers(0, 2**40), epoch=st.integers(0, 99))
def test_every_index_comes_out_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(order(count, "rows", seed, epoch).tolist()) == list(range(count))


@given(count=st.integers(2, 2**62), seed=st.integers(0, 9), data=st.data())
def test_indices_are_permuted_independently(count: int, seed: int, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=9, unique=True))
    together = shuffled(np.array(chosen), count, "rows", seed)
    alone = [int(shuffled(np.array([index]), count, "rows", seed)[0]) for index in chosen]
    assert together.tolist() == alone
    assert len(set(alone)) == len(alone)
    assert all(0 <= place < count for place in alone)


def test_every_order_of_few_is_about_equally_likely() -> None:
    seeds = 4_800
    found = np.stack([order(4, "fair", seed) for seed in range(seeds)])
    numbers = found @ np.array([64, 16, 4, 1])
    counts = np.unique(numbers, return_counts=True)[1]
    assert len(counts) == 24
    # Chi-squared with 23 degrees of freedom: 49.7 is exceeded once in a thousand.
    assert ((counts - seeds / 24) ** 2 / (seeds / 24)).sum() < 49.7


def test_another_purpose_is_another_order() -> None:
    orders = [order(1000, "rows", seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            # Two orders agree in one place on average, and in more than 8 hardly ever.
            assert (one == other).sum() <= 8


def test_the_order_is_pinned() -> None:
    """What a run has read must not depend on the version: another order is another result."""
    found = order(1000, "rows", 7, 3).astype("<i8").tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == "ce072e2aa2b2a379"


@pytest.mark.parametrize(("indices", "count"), [([3], 3), ([-1], 3), ([0], 0), ([0], 2**62 + 1)])
def test_invalid_arguments_are_rejected(indices: list[int], count: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        shuffled(np.array(indices), count, "rows")


def test_shapes_are_kept() -> None:
    assert shuffled(np.zeros((2, 3), dtype=np.int64), 5, "rows").shape == (2, 3)
    assert shuffled(np.zeros(0, dtype=np.int64), 5, "rows").tolist() == []
    assert shuffled(np.zeros(1, dtype=np.int64), 1, "rows").tolist() == [0]
