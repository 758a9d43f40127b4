"""Amounts as people type and read them: one system of units at a time, nothing guessed."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.cli._units import (
    format_bytes,
    format_change,
    format_count,
    format_price,
    format_share,
    format_tokens,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_share,
)
from qkvary.storage.errors import UsageError

POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("24GiB", 24 * 2**30),
        ("40GB", 40 * 10**9),
        ("40 gb", 40 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5TiB", 3 * 2**39),
        ("80e", None),
        ("1,024MiB", 2**30),
        ("1_000_000", 10**6),
        ("123456", 123_456),
        ("7B", 7),
        ("0.5kB", 500),
        ("2KiB", 2048),
    ],
)
def test_memory(text: str, amount: int | None) -> None:
    if amount is None:
        with pytest.raises(UsageError):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "",
        "24G",
        "GB",
        "-1GB",
        "0GB",
        "nan",
        "infGB",
        "1e9",
        "24 Gi B",
        "٣GB",
        # A decimal comma is not a mark between thousands.
        "1,5GB",
        "1,50GB",
        "12_34GB",
        "24GiB/s",
        "9" * 400 + "GB",
    ],
)
def test_other_memory_is_refused(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"expected memory such as 24GiB \(2\^30\) or 40GB"
    ) as caught:
        parse_bytes(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "rate"), [("900GB/s", 9e11), ("900 GB", 9e11), ("1.6TiB/s", 1.6 * 2**40)]
)
def test_bandwidth(text: str, rate: float) -> None:
    assert parse_bandwidth(text) == rate


@pytest.mark.parametrize(
    ("text", "rate"), [("121TFLOPS", 121e12), ("2 tflops/s", 2e12), ("0.5PFLOPS", 5e14)]
)
def test_matrix_rates(text: str, rate: float) -> None:
    assert parse_flops(text) == rate


def test_other_rates_are_refused() -> None:
    for text in ("fast", "0GB/s", "900G/s", "1GB/h"):
        with pytest.raises(UsageError, match="expected a bandwidth such as 900GB/s"):
            parse_bandwidth(text)
    for text in ("121T", "121 TOPS", "-1TFLOPS", "0TFLOPS"):
        with pytest.raises(UsageError, match="expected a matrix rate such as 121TFLOPS"):
            parse_flops(text)


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), ("0.1", 0.1), ("0", 0.0), ("100 %", 1.0), ("2.5%", 0.025)]
)
def test_shares(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", "%", "101%", "1.1", "-5%", "ten", "nan", "10%%", "1e-1"])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected a share such as 10% or 0.1, got"):
        parse_share(text)


@pytest.mark.parametrize(
    ("amount", "binary", "decimal"),
    [
        (None, "-", "-"),
        (0, "0 B", "0 B"),
        (0.5, "0.5 B", "0.5 B"),
        (1000, "1,000 B", "1.00 kB"),
        (1023, "1,023 B", "1.02 kB"),
        (1024, "1.00 KiB", "1.02 kB"),
        (81_920, "80.00 KiB", "81.92 kB"),
        (2**20 - 1, "1.00 MiB", "1.05 MB"),
        (999_999, "976.6 KiB", "1.00 MB"),
        (40 * 10**9, "37.25 GiB", "40.00 GB"),
        (2.5 * 2**30, "2.50 GiB", "2.68 GB"),
        (99.999 * 2**30, "100.0 GiB", "107.4 GB"),
        (1000 * 2**40, "1000 TiB", "1.10 PB"),
        (2**80, "1048576 EiB", "1208926 EB"),
    ],
)
def test_amounts_of_memory(amount: float | None, binary: str, decimal: str) -> None:
    assert format_bytes(amount) == binary
    assert format_bytes(amount, decimal=True) == decimal


@given(amount=st.integers(0, 2**70), decimal=st.booleans())
def test_what_is_printed_is_what_was_counted(amount: int, decimal: bool) -> None:
    """Two to four digits of it, in units of one system."""
    text = format_bytes(amount, decimal=decimal)
    match = re.fullmatch(r"([\d,.]+) (B|[kKMGTPE]i?B)", text)
    assert match is not None
    unit = match[2]
    assert ("i" in unit) == (not decimal) or unit == "B"
    step = 1000 if decimal else 1024
    factor = 1 if unit == "B" else step ** POWERS[unit[0].lower()]
    value = float(match[1].replace(",", ""))
    assert value * factor == pytest.approx(amount, rel=0.005)
    assert value < step or unit[0] == "E"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "-"),
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (305_534_976, "305.5 M"),
        (999_999, "1 M"),
        (7_504_924_672, "7.505 G"),
        (1e21, "1000 E"),
    ],
)
def test_counts(amount: float | None, text: str) -> None:
    assert format_count(amount) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.1, "10%"),
        (0.125, "12.5%"),
        (0.0, "0%"),
        (0.999999, "99.9999%"),
        (0.07, "7%"),
        (1, "100%"),
    ],
)
def test_written_shares(share: float, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [(None, "-"), (math.inf, "-"), (0, "0"), (16_000, "16,000"), (1.5, "1.50"), (2.5e3, "2,500")],
)
def test_prices(amount: float | None, text: str) -> None:
    assert format_price(amount) == text


def test_tokens() -> None:
    assert (format_tokens(32_768), format_tokens(0), format_tokens(None)) == (
        "32,768",
        "0",
        "no limit",
    )


@pytest.mark.parametrize(
    ("value", "base", "text"),
    [
        (1, 1, "="),
        (0, 0, ""),
        (3, 0, "new"),
        (1, 2, "-50 %"),
        (1.005, 1, "+0.5 %"),
        (13.27, 1, "+1,227 %"),
        (0, 7, "-100 %"),
    ],
)
def test_changes(value: float, base: float, text: str) -> None:
    assert format_change(value, base) == text
