"""Number formats: bytes of a row against packing it, spelling, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.caches import CacheOptions
from qkvary.costs.formats import Format, cache_format, format_options, parse_format, parse_options

BY_CHANNEL = CacheOptions(storage="int4", scales="channel", block=16, residual=5, rotate=True)


@pytest.mark.parametrize(
    ("name", "eight", "hundred"),
    [
        ("fp64", 64, 800),
        ("fp32", 32, 400),
        ("bf16", 16, 200),
        ("fp16", 16, 200),
        ("fp8", 8, 100),
        # A scale and a 16-bit zero point for each 64 numbers begun.
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


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        (" BF16 ", "bf16"),
        ("bfloat16", "bf16"),
        ("INT4-G32", "int4-g32"),
        ("int4-b32-R16-FP32", "int4-b32-r16-fp32"),
    ],
)
def test_spellings(spelled: str, name: str) -> None:
    assert parse_format(spelled).name == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "int5",
        "int4-g-3",
        "bf16-g32",
        "int4-g٣",
        "int4-r1-g2",
    ],
)
def test_unknown_formats_are_refused_with_the_choices(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected one of the formats fp32, bf16, .*, got"
    ) as caught:
        parse_format(text)
    assert len(str(caught.value).splitlines()) == 1


def test_rows_of_which_the_first_were_dropped() -> None:
    form = parse_format("int4-b8-r5")
    # Of 40 the last 20: three of the third block, the fourth, and eight that wait.
    assert form.divide(40, 20) == (12, 2, 8)
    assert form.divide(40, 3) == (0, 0, 3)
    assert (form.last_closing(40), form.last_closing(37), form.last_closing(36)) == (37, 37, 29)
    assert form.last_closing(12) == 0


def test_options_of_a_cache_have_a_format() -> None:
    by_channel = CacheOptions(storage="int3", scales="channel", block=16, residual=7)
    names = [
        cache_format(options, dtype).name
        for options, dtype in (
            (CacheOptions(), "bfloat16"),
            (CacheOptions(storage="preallocated"), "float64"),
            (CacheOptions(storage="int8"), "float32"),
            (CacheOptions(storage="int4", group=9, residual=5, rotate=True), "float16"),
            (by_channel, "float64"),
        )
    ]
    assert names == ["bf16", "fp64", "int8-g64-fp32", "int4-g9-r5-fp16", "int3-b16-r7-fp64"]
    assert (cache_format(by_channel, "float64").plain_bits, parse_format("int8").plain_bits) == (
        64,
        16,
    )


@pytest.mark.parametrize(
    ("spelled", "options"),
    [
        ("int8-g64", CacheOptions(storage="int8")),
        ("int4-b16-r5-rot", BY_CHANNEL),
        ("int3-g7-rot", CacheOptions(storage="int3", group=7, rotate=True)),
    ],
)
def test_storages_are_spelled_and_read(spelled: str, options: CacheOptions) -> None:
    assert format_options(options) == spelled
    assert parse_options(f" {spelled.upper()}") == options
    assert format_options(CacheOptions()) == "growing"


@pytest.mark.parametrize(
    "text", ["", "fp8", "rot", "int4-g32-fp32", "int4-b32-rot-r5", "int8-bf16"]
)
def test_what_is_no_storage_of_codes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a storage such as int8.*choices: int8, int4,"):
        parse_options(text)
