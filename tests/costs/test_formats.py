"""Number formats: bytes of a row against packing it, spelling, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.costs.formats import FORMATS, Format, parse_format


@pytest.mark.parametrize(
    ("name", "eight", "hundred"),
    [
        ("fp64", 64, 800),
        ("fp32", 32, 400),
        ("bf16", 16, 200),
        ("fp16", 16, 200),
        ("fp8", 8, 100),
        # A scale and a zero point of 16 bits for each 64 numbers begun.
        ("int8", 8 + 4, 100 + 8),
        ("int4", 4 + 4, 50 + 8),
        ("int4-g32", 4 + 4, 50 + 16),
        ("int8-g1", 8 + 32, 100 + 400),
    ],
)
def test_bytes_of_a_row_by_hand(name: str, eight: int, hundred: int) -> None:
    form = parse_format(name)
    assert (form.row_bytes(8), form.row_bytes(100), form.row_bytes(0)) == (eight, hundred, 0)


def test_half_bytes_are_rounded_up() -> None:
    assert [parse_format("int4-g1000").row_bytes(numbers) for numbers in (1, 2, 3)] == [5, 5, 6]


@given(
    numbers=st.integers(0, 10**15),
    bits=st.sampled_from([4, 8, 16, 32]),
    group=st.none() | st.integers(1, 999),
)
def test_rows_hold_their_bits_and_their_scales(numbers: int, bits: int, group: int | None) -> None:
    found = Format(name="any", bits=bits, group=group).row_bytes(numbers)
    scales = 0 if group is None else -(-numbers // group)
    assert found - 4 * scales == -(-numbers * bits // 8)


def test_lossy_means_less_than_sixteen_bits() -> None:
    lossy = {name for name in FORMATS if parse_format(name).is_lossy}
    assert lossy == {"fp8", "int8", "int4"}


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (" BF16 ", "bf16"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("float32", "fp32"),
        ("fp8_e4m3", "fp8"),
        ("INT4-G32", "int4-g32"),
    ],
)
def test_spellings(spelled: str, name: str) -> None:
    assert parse_format(spelled).name == name


def test_every_listed_name_can_be_read() -> None:
    assert [parse_format(name).name for name in FORMATS] == list(FORMATS)


@pytest.mark.parametrize(
    "text",
    ["", "int3", "fp4", "int4-g", "int4-g-3", "bf16-g32", "int4 g32", "int4-g٣", "int4-g1e3"],
)
def test_unknown_formats_are_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a format out of fp32, bf16, .*, got") as caught:
        parse_format(text)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("group", ["0", "1048577", "9" * 5000])
def test_groups_have_a_size(group: str) -> None:
    with pytest.raises(ValueError, match=r"expected (groups of 1 to 1,048,576 numbers|a format)"):
        parse_format(f"int4-g{group}")


def test_scales_of_a_group_as_large_as_a_row_are_one() -> None:
    for head_dim in (64, 80, 128, 256):
        scales = parse_format("int4").row_bytes(head_dim) - head_dim // 2
        assert scales == 4 * math.ceil(head_dim / 64)
