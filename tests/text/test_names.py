"""Names and lists as sentences and files take them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.text import names


def test_clip_says_what_it_cut() -> None:
    assert names.clip("x" * 120) == "x" * 120
    assert names.clip("x" * 10_000).endswith("… (cut, 10,000 characters)")
    assert len(names.clip("x" * 10_000)) < 160


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


def test_lists_and_counts_read_like_sentences() -> None:
    assert names.listed([]) == ""
    assert names.listed(["a"]) == "a"
    assert names.listed(["a", "b", "c"]) == "a, b and c"
    assert names.listed(("a", "b"), "or") == "a or b"
    assert names.count(1, "run") == "1 run"
    assert names.count(1200, "run") == "1,200 runs"
    assert names.count(2, "loss", "losses") == "2 losses"


def test_markdown_stays_text_on_one_line() -> None:
    assert names.markdown("a|b\n# <b> [x](y)") == "a\\|b \\# \\<b\\> \\[x\\](y)"


def test_a_wrong_name_is_answered_with_the_nearest_or_with_all() -> None:
    assert names.suggest("quickstrt", ["quickstart", "lm-small"]) == "did you mean quickstart?"
    assert names.suggest("Quick_Strt", ["QuickStart"]) == "did you mean QuickStart?"
    assert names.suggest("x", iter(["quickstart", "lm-small"])) == "choices: quickstart, lm-small"


def test_a_name_is_found_in_any_spelling() -> None:
    choices = ["lm-small", "Q-MQA", "a100-40gb"]
    assert names.find_name(" LM_Small ", choices) == "lm-small"
    assert names.find_name("q-mqa", choices) == "Q-MQA"
    assert names.find_name("A100 40GB", choices) == "a100-40gb"
    assert names.find_name("lmsmall", choices) is None
