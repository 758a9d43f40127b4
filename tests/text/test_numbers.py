"""Numbers for readers: significant digits, signs, and a dash for none."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from qkvary.text import numbers
from qkvary.text.numbers import check_number, check_whole


@pytest.mark.parametrize(
    ("write", "given", "written"),
    [
        (numbers.real, (None, 3), "–"),
        (numbers.real, (0.0, 3), "0"),
        (numbers.real, (0.12345, 3), "0.123"),
        (numbers.real, (0.99996, 3), "1.00"),
        (numbers.real, (123456.0, 3), "123,456"),
        (numbers.real, (-0.5, 2), "−0.50"),
        (numbers.real, (1.5e-7, 2), "1.5 × 10⁻⁷"),
        (numbers.real, (0.00012, 2), "0.00012"),
        (numbers.real, (math.nan, 3), "NaN"),
        (numbers.real, (-math.inf, 3), "−∞"),
        (numbers.compact, (None, 3), "–"),
        (numbers.compact, (0, 3), "0"),
        (numbers.compact, (950, 3), "950"),
        (numbers.compact, (999, 3), "999"),
        (numbers.compact, (1000, 3), "1 k"),
        (numbers.compact, (72_586, 3), "72.6 k"),
        (numbers.compact, (999_499, 3), "999 k"),
        (numbers.compact, (999_999, 3), "1 M"),
        (numbers.compact, (1_180_000, 3), "1.18 M"),
        (numbers.compact, (305_534_976, 4), "305.5 M"),
        (numbers.compact, (7_504_924_672, 4), "7.505 G"),
        (numbers.compact, (-3e12, 3), "−3 T"),
        (numbers.compact, (1e21, 3), "1,000 E"),
        (numbers.compact, (math.inf, 3), "∞"),
        (numbers.change, (1, 1), "="),
        (numbers.change, (0, 0), ""),
        (numbers.change, (3, 0), "new"),
        (numbers.change, (1, 2), "−50 %"),
        (numbers.change, (1.005, 1), "+0.5 %"),
        (numbers.change, (13.27, 1), "+1,227 %"),
        (numbers.change, (0, 7), "−100 %"),
        (numbers.share, (0.1,), "10 %"),
        (numbers.share, (0.125,), "12.5 %"),
        (numbers.share, (0.0,), "0 %"),
        (numbers.share, (0.999999,), "99.9999 %"),
        (numbers.share, (0.07,), "7 %"),
        (numbers.share, (1,), "100 %"),
        (numbers.duration, (0.0,), "0 s"),
        (numbers.duration, (0.0123,), "12.3 ms"),
        (numbers.duration, (14.04,), "14.0 s"),
        (numbers.duration, (125,), "2 min 05 s"),
        (numbers.duration, (4440,), "1 h 14 min"),
        (numbers.duration, (365.25 * 24 * 3600 * 551,), "551 years"),
        (numbers.duration, (None,), "–"),
    ],
)
def test_numbers_are_written_so(
    write: Callable[..., str], given: tuple[Any, ...], written: str
) -> None:
    assert write(*given) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0.000"), (-0.0001, "0.000"), (0.0271, "+0.027"), (-0.0271, "−0.027"), (None, "–")],
)
def test_fixed_writes_signs_and_no_negative_zero(value: float | None, written: str) -> None:
    assert numbers.fixed(value, 3, sign=True) == written


def test_the_perplexity_of_a_loss_that_overflows_is_infinite() -> None:
    assert numbers.perplexity(1.5) == math.exp(1.5)
    assert numbers.perplexity(700) == numbers.perplexity(1e9) == math.inf


@pytest.mark.parametrize(
    ("spread", "decimals"),
    [(0.034, 3), (0.34, 2), (3.4, 1), (34.0, 0), (340.0, 0), (1e-9, 6), (0.0, 3), (None, 3)],
)
def test_decimals_show_two_digits_of_the_spread(spread: float | None, decimals: int) -> None:
    assert numbers.decimals_of(spread) == decimals


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
