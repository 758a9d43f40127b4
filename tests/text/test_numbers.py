"""Numbers for readers: significant digits, signs, and a dash for none."""

import math

import pytest

from qkvary.text import numbers
from qkvary.text.numbers import check_number, check_whole


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (None, 3, "–"),
        (0.0, 3, "0"),
        (0.12345, 3, "0.123"),
        (0.99996, 3, "1.00"),
        (123456.0, 3, "123,456"),
        (-0.5, 2, "−0.50"),
        (1.5e-7, 2, "1.5 × 10⁻⁷"),
        (0.00012, 2, "0.00012"),
        (math.nan, 3, "NaN"),
        (-math.inf, 3, "−∞"),
    ],
)
def test_real_keeps_significant_digits(value: float | None, digits: int, written: str) -> None:
    assert numbers.real(value, digits) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0.000"), (-0.0001, "0.000"), (0.0271, "+0.027"), (-0.0271, "−0.027"), (None, "–")],
)
def test_fixed_writes_signs_and_no_negative_zero(value: float | None, written: str) -> None:
    assert numbers.fixed(value, 3, sign=True) == written


@pytest.mark.parametrize(
    ("value", "digits", "written"),
    [
        (None, 3, "–"),
        (0, 3, "0"),
        (950, 3, "950"),
        (999, 3, "999"),
        (1000, 3, "1 k"),
        (72_586, 3, "72.6 k"),
        (999_499, 3, "999 k"),
        (999_999, 3, "1 M"),
        (1_180_000, 3, "1.18 M"),
        (305_534_976, 4, "305.5 M"),
        (7_504_924_672, 4, "7.505 G"),
        (-3e12, 3, "−3 T"),
        (1e21, 3, "1,000 E"),
        (math.inf, 3, "∞"),
    ],
)
def test_compact_counts(value: float | None, digits: int, written: str) -> None:
    assert numbers.compact(value, digits) == written


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [
        (1, 1, "="),
        (0, 0, ""),
        (3, 0, "new"),
        (1, 2, "−50 %"),
        (1.005, 1, "+0.5 %"),
        (13.27, 1, "+1,227 %"),
        (0, 7, "−100 %"),
    ],
)
def test_changes(value: float, base: float, text: str) -> None:
    assert numbers.change(value, base) == text


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (0.1, "10 %"),
        (0.125, "12.5 %"),
        (0.0, "0 %"),
        (0.999999, "99.9999 %"),
        (0.07, "7 %"),
        (1, "100 %"),
    ],
)
def test_shares_keep_their_digits(share: float, written: str) -> None:
    assert numbers.share(share) == written


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
