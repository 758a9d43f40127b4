"""Random numbers and orders follow from their purpose alone."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.data.rows import (
    epoch_batch,
    permutation,
    random_indices,
    random_words,
    shuffled,
)
from tests.conftest import examples

PINNED = [0x3F05E10925CFFA77, 0xB48249A87632DC43, 0xCBFEE024AEF33221]


def test_the_first_words_never_change() -> None:
    """A run key promises these numbers; another numpy must not change them."""
    assert random_words(3, "pinned", 1, 2).tolist() == PINNED


def test_indices_are_uniform_below_their_limit() -> None:
    counts = np.bincount(random_indices(70_000, 7, "uniform"), minlength=7)
    assert counts.shape == (7,)
    assert abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


def test_permutation_holds_every_index_once() -> None:
    order = permutation(1_013, "order", 0)
    assert sorted(order.tolist()) == list(range(1_013))
    assert (order != permutation(1_013, "order", 1)).mean() > 0.9


def test_an_epoch_has_no_example_twice_and_each_its_own_order() -> None:
    epochs = [
        [i for step in range(4) for i in epoch_batch(23, 5, step=4 * epoch + step, seed=3).tolist()]
        for epoch in range(2)
    ]
    for order in epochs:
        assert len(order) == len(set(order)) == 20
        assert set(order) < set(range(23))
    assert epochs[0] != epochs[1]
    assert epoch_batch(23, 5, step=0, seed=4).tolist() != epochs[0][:5]
    assert epoch_batch(23, 5, step=0, seed=3).tolist() == epochs[0][:5]


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


def test_the_order_is_pinned() -> None:
    """What a run has read must not depend on the version: another order is another result."""
    found = order(1000, "rows", 7, 3).astype("<i8").tobytes()
    assert hashlib.sha256(found).hexdigest()[:16] == "ce072e2aa2b2a379"


@pytest.mark.parametrize(("indices", "count"), [([3], 3), ([-1], 3), ([0], 0), ([0], 2**62 + 1)])
def test_invalid_arguments_are_rejected(indices: list[int], count: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        shuffled(np.array(indices), count, "rows")
