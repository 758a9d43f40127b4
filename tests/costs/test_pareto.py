"""Dominance is what its definition says, whatever the points are."""

import math

from hypothesis import given
from hypothesis import strategies as st

from qkvary.costs.pareto import dominates

# Few values, so that points are often equal in some quantity or in all.
POINT = st.tuples(*[st.sampled_from([-math.inf, -1.0, 0.0, 2.0, math.inf])] * 3)


@given(one=POINT, other=POINT)
def test_dominance_is_no_worse_everywhere_and_better_somewhere(
    one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    largest = [max(pair) for pair in zip(one, other, strict=True)]
    assert dominates(one, other) == (one != other and largest == list(other))


def test_what_is_no_number_neither_dominates_nor_is_dominated() -> None:
    assert not dominates((1.0, math.nan), (2.0, 1.0))
    assert not dominates((1.0, 1.0), (2.0, math.nan))
