"""Numbers that callers give: what is in a range passes, anything else is one sentence."""

import math

import pytest

from qkvary.text.numbers import check_number, check_whole


@pytest.mark.parametrize("value", [1, 2, 9])
def test_what_is_in_the_range_passes(value: int) -> None:
    check_whole("size", value, low=1, high=9)
    check_number("size", value, low=1, high=9)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None, math.nan, 10**30])
def test_other_values_are_no_whole_numbers_of_the_range(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected .* for size, got [^\n]*$"):
        check_whole("size", value, low=1, high=9)


@pytest.mark.parametrize("value", [0.5, 9.5, True, "3", None, math.nan, math.inf])
def test_other_values_are_no_numbers_of_the_range(value: object) -> None:
    with pytest.raises(ValueError, match=r"^expected size from 1 to 9, got "):
        check_number("size", value, low=1, high=9)
