"""Every field is checked when it is read, and every message says what was expected."""

import math
import re

import pytest

from qkvary.arch.families.fields import MOST_LAYERS, Fields


def fields(**content: object) -> Fields:
    return Fields(content, "llama")


def refuses(message: str) -> "pytest.RaisesExc[ValueError]":
    return pytest.raises(ValueError, match=re.escape(message))


def test_the_first_name_that_is_present_counts() -> None:
    assert fields(n_layer=3, num_layers=5).size("num_layers", "n_layer") == 5
    assert fields(n_layer=3, num_layers=None).size("num_layers", "n_layer") == 3
    assert fields(a=None).size("a", default=7) == 7
    assert fields(a=11.0).size("a") == 11
    with refuses("for n_layer of a llama configuration, got 0"):
        fields(n_layer=0, num_layers=None).size("num_layers", "n_layer")


@pytest.mark.parametrize("value", [0, -1, True, "3", 2.5, math.nan, math.inf, [4], 2**41, 10**400])
def test_a_size_is_a_positive_whole_number(value: object) -> None:
    with refuses("expected a whole number in 1 ... 2^40 for hidden_size of a llama configuration"):
        fields(hidden_size=value).size("hidden_size")


def test_a_missing_size_names_its_spellings_and_what_is_there() -> None:
    with refuses("the field n_layer or num_layers in a llama configuration, got heads, width"):
        fields(width=3, heads=2).size("n_layer", "num_layers")
    with refuses("expected at most 10,000 layers for a of a llama configuration, got 10001"):
        fields(a=MOST_LAYERS + 1).layers("a")


def test_lists_have_the_right_words_and_length() -> None:
    config = fields(kinds=["b", "a"], number=3, long=[0] * (MOST_LAYERS + 1))
    assert config.words("kinds", choices="ab", length=2) == ("b", "a")
    assert config.words("absent", choices="ab", length=2) is None
    with refuses("expected words from a, c for kinds of a llama configuration, got 'b'"):
        config.words("kinds", choices="ac", length=2)
    with refuses("expected 3 entries for kinds of a llama configuration, got '2 entries'"):
        config.words("kinds", choices="ab", length=3)
    with refuses("expected a list for number of a llama configuration, got 3"):
        config.items("number")
    with refuses("expected at most 10,000 entries for long of a llama configuration"):
        config.items("long")


def test_sections_are_configurations_of_the_same_family() -> None:
    section = fields(rope={"theta": 7}).section("rope")
    assert section is not None
    assert (section.size("theta"), section.family) == (7, "llama")
    assert fields(rope=None).section("rope") is None
    with refuses("expected a nested configuration for rope of a llama configuration, got 'yarn'"):
        fields(rope="yarn").section("rope")
