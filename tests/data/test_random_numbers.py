"""Random numbers follow from their purpose alone."""

import numpy as np
import pytest

from qkvary.data.random_numbers import permutation, random_indices, random_words

PINNED = [0x3F05E10925CFFA77, 0xB48249A87632DC43, 0xCBFEE024AEF33221]


def test_the_first_words_never_change() -> None:
    """A run key promises these numbers; another numpy must not change them."""
    assert random_words(3, "pinned", 1, 2).tolist() == PINNED


def test_same_purpose_same_words_another_purpose_others() -> None:
    words = random_words(50, "examples", 3)
    assert (words == random_words(50, "examples", 3)).all()
    for other in (("examples", 4), ("order", 3), ("examples", 3, 0)):
        assert (words != random_words(50, *other)).all()


def test_a_longer_draw_begins_with_the_shorter() -> None:
    assert (random_words(100, "a")[:37] == random_words(37, "a")).all()


def test_indices_are_uniform_below_their_limit() -> None:
    counts = np.bincount(random_indices(70_000, 7, "uniform"), minlength=7)
    assert counts.shape == (7,)
    assert abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


def test_permutation_holds_every_index_once() -> None:
    order = permutation(1_013, "order", 0)
    assert sorted(order.tolist()) == list(range(1_013))
    assert (order != permutation(1_013, "order", 1)).mean() > 0.9


def test_a_purpose_begins_with_a_name() -> None:
    with pytest.raises(
        ValueError, match="expected a purpose that begins with a name, got \\(3,\\)"
    ):
        random_words(1, 3)
