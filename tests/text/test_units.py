"""Formatting and parsing of amounts; ambiguous units are rejected."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.text import numbers

POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (None, "–"),
        (0, "0 B"),
        (0.5, "0.5 B"),
        (1000, "1,000 B"),
        (1024, "1 KiB"),
        (2**20 - 1, "1 MiB"),
        (999_999, "977 KiB"),
        (99.999 * 2**30, "100 GiB"),
        (2**80, "1,048,576 EiB"),
    ],
)
def test_amounts_of_memory(amount: float | None, written: str) -> None:
    assert numbers.data_size(amount) == written


@given(amount=st.integers(0, 2**70), digits=st.integers(3, 5))
def test_what_is_printed_is_what_was_counted(amount: int, digits: int) -> None:
    """So many digits of it, in the largest unit that leaves at least 1."""
    match = re.fullmatch(r"([\d,.]+) (B|[KMGTPE]iB)", numbers.data_size(amount, digits))
    assert match is not None
    unit = match[2]
    factor = 1 if unit == "B" else 1024 ** POWERS[unit[0].lower()]
    value = float(match[1].replace(",", ""))
    assert value * factor == pytest.approx(amount, rel=0.51 * 10 ** (1 - digits))
    assert value < 1024 or unit[0] == "E"
    assert value >= 1 or unit == "B"


@pytest.mark.parametrize(
    ("number", "written"),
    [(16, "16"), (1024, "1k"), (1536, "1.5k"), (1500, "1,500"), (32_768, "32k"), (2**20, "1M")],
)
def test_tokens_are_counted_in_1024(number: int, written: str) -> None:
    assert numbers.tokens(number) == written


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("24GiB", 24 * 2**30),
        ("40GB", 40 * 10**9),
        ("40 gb", 40 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5TiB", 3 * 2**39),
        ("1,024MiB", 2**30),
        ("1_000_000B", 10**6),
        ("123456 b", 123_456),
        ("7B", 7),
        ("0.5kB", 500),
        ("2KiB", 2048),
    ],
)
def test_memory(text: str, amount: int) -> None:
    assert numbers.parse_bytes(text) == amount


# A decimal comma is not a mark between thousands.
REFUSED = "24G 24 80e 1_000_000 GB -1GB 0GB nan infGB 1e9 ٣GB 1,5GB 1,50GB 12_34GB 24GiB/s"


@pytest.mark.parametrize("text", ["", "24 Gi B", "9" * 400 + "GB", *REFUSED.split()])
def test_other_memory_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"expected memory such as 24GiB \(2\^30\) or 40GB"
    ) as caught:
        numbers.parse_bytes(text)
    assert len(str(caught.value)) < 200


def test_other_rates_are_refused() -> None:
    for text in ("fast", "900", "0GB/s", "900G/s", "1GB/h"):
        with pytest.raises(ValueError, match="expected a bandwidth such as 900GB/s"):
            numbers.parse_bandwidth(text)
    for text in ("121T", "121 TOPS", "-1TFLOPS", "0TFLOPS"):
        with pytest.raises(ValueError, match="expected a speed of matrix arithmetic such as "):
            numbers.parse_flops(text)
