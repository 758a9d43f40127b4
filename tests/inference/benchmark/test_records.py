import dataclasses
import json
from typing import Any

import pytest

from qkvary.arch.caches import CacheOptions
from qkvary.inference.benchmark.records import (
    FORMAT,
    CacheChoice,
    DecodeQuestion,
    Times,
    from_json,
    to_json,
)
from qkvary.storage.errors import DamagedError, NewerFormatError
from tests.inference.benchmark.made_up import ROTATED, make_record


def test_a_record_comes_back_as_it_was() -> None:
    record = make_record()
    data = to_json(record)
    assert from_json(data, where="here") == record
    assert to_json(from_json(data, where="here")) == data
    assert json.loads(data)["schema_version"] == FORMAT.version


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"schema_version": 1}',
        b'{"schema_version": "1", "speed": 3}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_refused_in_a_sentence(data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^here is not a measurement of decoding: ") as error:
        from_json(data, where="here")
    assert len(str(error.value).splitlines()) == 1


def test_unknown_fields_and_words_are_refused() -> None:
    document = json.loads(to_json(make_record()))
    document["speed"][0]["runner"] = "somebody"
    with pytest.raises(DamagedError, match="somebody"):
        from_json(json.dumps(document).encode(), where="here")
    document = json.loads(to_json(make_record())) | {"sped": 1}
    with pytest.raises(DamagedError, match="did you mean speed"):
        from_json(json.dumps(document).encode(), where="here")


def test_a_newer_record_is_told_apart() -> None:
    document = json.loads(to_json(make_record())) | {"schema_version": FORMAT.version + 1}
    with pytest.raises(NewerFormatError, match="use a newer qkvary"):
        from_json(json.dumps(document).encode(), where="here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": ()}, "expected at least one network, context, batch, dtype and cache"),
        ({"batches": (0,)}, "expected batch of at least 1, got 0"),
        ({"contexts": (240,)}, "room for a prompt before 240 new tokens, got 240"),
        ({"effort": {"new_tokens": 1}}, "expected new_tokens of at least 2, got 1"),
        ({"effort": {"rounds": 0}}, "expected rounds of at least 1, got 0"),
        ({"effort": {"threads": 0}}, "expected threads of at least 1, got 0"),
        ({"effort": {"memory_context": 100}}, "before 240 new tokens, got 100"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    question = make_record().question
    if "effort" in change:
        change = {"effort": dataclasses.replace(question.effort, **change["effort"])}
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(question, **change)


def test_no_memory_and_no_long_context_are_different_answers() -> None:
    question = make_record().question
    for context in (None, 0):
        effort = dataclasses.replace(question.effort, memory_context=context)
        asked = dataclasses.replace(question, effort=effort)
        assert isinstance(asked, DecodeQuestion)
        assert asked.effort.memory_context is context


def test_times_come_in_rounds() -> None:
    with pytest.raises(ValueError, match="as many times of every kind"):
        Times(
            seconds=(1.0, 2.0),
            first_seconds=(0.1,),
            cpu_seconds=(1.0, 2.0),
            first_cpu_seconds=(0.1, 0.1),
        )


def test_a_choice_says_what_is_not_as_usual() -> None:
    assert CacheChoice().resolve(ROTATED) == ROTATED
    assert CacheChoice(layout="split").resolve(ROTATED) == dataclasses.replace(
        ROTATED, layout="split"
    )
    coded = CacheOptions(storage="int8", group=32)
    assert CacheChoice(storage=coded, kernel="native").resolve(ROTATED) == dataclasses.replace(
        coded, layout="rotated", kernel="native"
    )
