"""Invalid requests are rejected, and batches fit the network."""

import math
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qkvary.inference.requests import Event, Request, Sampling, collect
from tests.conftest import examples


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Sampling, {"temperature": -0.1}, "temperature finite and at least 0, got -0.1"),
        (Sampling, {"temperature": math.nan}, "temperature finite and at least 0, got nan"),
        (Sampling, {"top_k": 0}, "a whole number of at least 1 for top_k, got 0"),
        (Sampling, {"top_p": 0}, "top_p above 0, got 0"),
        (Sampling, {"top_p": 1.01}, "top_p from 0 to 1, got 1.01"),
        (Sampling, {"repetition_penalty": 0}, "a positive repetition_penalty, got 0"),
        (Request, {"prompt": ()}, "a prompt of at least one token, got none"),
        (Request, {"max_new_tokens": -1}, "a whole number of at least 0 for max_new_tokens"),
        (Request, {"prompt": (1, -1)}, "a whole number of at least 0 for a token, got -1"),
        (Request, {"seed": -1}, "a whole number of at least 0 for seed, got -1"),
        (Request, {"stop": ("",)}, "stop strings of 1 to 1024 characters, got 0"),
        (Request, {"stop": ("a",) * 65}, "at most 64 stop strings, got 65"),
    ],
)
def test_invalid_fields_are_rejected(kind: Any, fields: dict[str, object], message: str) -> None:
    given_too = {"prompt": (1,), "max_new_tokens": 3} if kind is Request else {}
    with pytest.raises(ValueError, match=f"^expected {re.escape(message)}"):
        kind(**{**given_too, **fields})


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=3),
    st.tuples(st.integers(-1, 3), st.text(max_size=2)),
)


@examples(30)
@given(
    fields=st.dictionaries(
        st.sampled_from(["prompt", "max_new_tokens", "seed", "stop_tokens"]), ANYTHING
    ),
    choices=st.dictionaries(
        st.sampled_from(["temperature", "top_k", "top_p", "min_p", "repetition_penalty"]), ANYTHING
    ),
)
def test_any_input_gives_a_request_or_a_value_error(
    fields: dict[str, object], choices: dict[str, object]
) -> None:
    for value in (fields.get("prompt"), fields.get("stop_tokens")):
        assume(value is None or isinstance(value, tuple | str))
    known = {name: value for name, value in fields.items() if value is not None}
    try:
        sampling = Sampling(**choices)  # type: ignore[arg-type]
        request = Request(**{"prompt": (1,), "max_new_tokens": 1, **known}, sampling=sampling)  # type: ignore[arg-type]
        request.check(vocabulary=13, max_tokens=7)
    except ValueError as error:
        assert str(error).startswith("expected")  # noqa: PT017  both ends are right


def test_events_become_an_answer_once_they_end() -> None:
    one = Event(request=0, token=5, logprob=-0.5, text="a", finish=None)
    last = Event(request=0, token=None, logprob=None, text="b", finish="end")
    answer = collect([one, last])
    assert (answer.tokens, answer.text, answer.finish) == ((5,), "ab", "end")
    assert answer.logprobs == (-0.5,)
    for events in ([], [one]):
        with pytest.raises(ValueError, match="expected events that end a text"):
            collect(events)
