import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.storage.jsonvalues import decode, encode

TEXT = st.text(st.characters(codec=None), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
KEYS = TEXT | st.sampled_from(["$float", "$$float", "$", "NaN", "check", "__proto__"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4)
)


def same(first: object, second: object) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        both_nan = math.isnan(first) and math.isnan(second)
        return both_nan or (first == second and math.copysign(1, first) == math.copysign(1, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and first == second


@given(VALUES)
def test_what_is_written_comes_back(value: object) -> None:
    text = encode(value)
    assert text.isascii()
    assert "\n" not in text
    assert same(decode(text), value)
    assert encode(decode(text)) == text
    assert same(decode(encode(value, indent=1)), value)


def test_special_numbers_are_standard_json() -> None:
    text = encode({"a": math.nan, "b": [math.inf, -math.inf]})
    assert json.loads(text) == {
        "a": {"$float": "NaN"},
        "b": [{"$float": "Infinity"}, {"$float": "-Infinity"}],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"$float": "nan"}', "expected one of NaN, Infinity, -Infinity"),
        ('{"$float": 3}', "expected one of NaN"),
        ('{"a": 1, "a": 2}', "same key twice"),
        ("{", "property name"),
    ],
)
def test_what_encode_never_writes_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(text)


def test_keys_must_be_strings() -> None:
    with pytest.raises(TypeError, match="expected strings as JSON keys, got 3"):
        encode({3: 1})
