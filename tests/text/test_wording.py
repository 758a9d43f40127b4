import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.text import names, numbers, units


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
    ("value", "written"),
    [(512, "512 B"), (1024, "1 KiB"), (81_920, "80 KiB"), (2.5 * 2**30, "2.5 GiB"), (None, "–")],
)
def test_data_size_uses_binary_units(value: float | None, written: str) -> None:
    assert units.data_size(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(512, "512 B"), (1000, "1 kB"), (40e9, "40 GB"), (2.5e15, "2.5 PB"), (None, "–")],
)
def test_data_size_uses_powers_of_ten_on_request(value: float | None, written: str) -> None:
    assert units.data_size(value, decimal=True) == written


@pytest.mark.parametrize(
    ("number", "written"),
    [(16, "16"), (1024, "1k"), (1536, "1.5k"), (1500, "1,500"), (32_768, "32k"), (2**20, "1M")],
)
def test_tokens_are_counted_in_1024(number: int, written: str) -> None:
    assert units.tokens(number) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(950, "950"), (72_586, "72.6 k"), (1_180_000, "1.18 M"), (999_999, "1 M"), (3e12, "3 T")],
)
def test_compact_counts(value: float, written: str) -> None:
    assert numbers.compact(value) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0 s"),
        (0.0123, "12.3 ms"),
        (14.04, "14.0 s"),
        (125, "2 min 05 s"),
        (4440, "1 h 14 min"),
        (None, "–"),
    ],
)
def test_duration_chooses_its_unit(seconds: float | None, written: str) -> None:
    assert units.duration(seconds) == written


@pytest.mark.parametrize("seconds", [119.99, 179.7, 3599.8, 7199.0])
def test_duration_never_writes_sixty(seconds: float) -> None:
    assert "60" not in units.duration(seconds)


def test_clip_says_what_it_cut() -> None:
    assert names.clip("x" * 120) == "x" * 120
    assert names.clip("x" * 10_000).endswith("… (cut, 10,000 characters)")
    assert len(names.clip("x" * 10_000)) < 160


@given(st.text(alphabet=st.characters(codec=None)))
def test_clean_text_can_be_written_anywhere(text: str) -> None:
    cleaned = names.clean(text)
    assert cleaned.encode().decode() == cleaned
    assert "\x00" not in cleaned
    assert len(cleaned) == len(text)


@given(st.text())
def test_slug_is_a_file_name(text: str) -> None:
    slug = names.slug(text)
    assert slug
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("quickstart", "quickstart"),
        ("train lm-tiny on mine", "train-lm-tiny-on-mine"),
        ("train-lm-10m-on-some-0a1b2c3d", "train-lm-10m-on-some-0a1b2c3d"),
        (f"{'x' * 40}-0a1b2c3d", f"{'x' * 40}-0a1b2c3d"),
        ("?", "unnamed"),
    ],
)
def test_a_folder_is_called_as_what_is_in_it(text: str, folder: str) -> None:
    assert names.folder_name(text) == folder


def test_long_names_have_folders_of_their_own() -> None:
    names = [f"{'a long name ' * 5}{end}" for end in ("", "one", "two")]
    folders = [names.folder_name(name) for name in names]
    assert len(set(folders)) == 3
    for folder in folders:
        assert folder.startswith("a-long-name-a-long-name-a-long-name-a-l")
        assert len(folder) <= 49


def test_lists_and_counts_read_like_sentences() -> None:
    assert names.listed([]) == ""
    assert names.listed(["a"]) == "a"
    assert names.listed(["a", "b", "c"]) == "a, b and c"
    assert names.count(1, "run") == "1 run"
    assert names.count(1200, "run") == "1,200 runs"


def test_markdown_stays_text_on_one_line() -> None:
    assert names.markdown("a|b\n# <b> [x](y)") == "a\\|b \\# \\<b\\> \\[x\\](y)"


def test_shares_and_prices_keep_their_digits() -> None:
    assert [numbers.share(value) for value in (0.1, 0.125, 0.0, 1)] == [
        "10 %",
        "12.5 %",
        "0 %",
        "100 %",
    ]
    assert [numbers.money(value) for value in (2000.0, 1.5, 0, None)] == ["2,000", "1.50", "0", "–"]
