import dataclasses
import json
from typing import Any

import pytest

from decoding.records import FORMAT, from_json, to_json
from qkvary.storage.errors import DamagedError
from tests.benchmarks.made_up import make_record


def test_a_record_survives_a_round_trip() -> None:
    record = make_record()
    assert from_json(to_json(record), where="here") == record
    assert json.loads(to_json(record))["schema_version"] == FORMAT.version


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"schema_version": "1", "speed": 3}', b"\xff\xfe", b"[" * 100_000],
)
def test_damaged_records_are_reported(data: bytes) -> None:
    with pytest.raises(DamagedError, match=r"^here is not a measurement of decoding: ") as error:
        from_json(data, where="here")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": (240,)}, "room for a prompt before 240 new tokens, got 240"),
        ({"settings": {"new_tokens": 1}}, "expected new_tokens of at least 2, got 1"),
        ({"settings": {"rounds": 0}}, "expected rounds of at least 1, got 0"),
        ({"settings": {"threads": 0}}, "expected threads of at least 1, got 0"),
        ({"settings": {"memory_context": 100}}, "before 240 new tokens, got 100"),
    ],
)
def test_invalid_questions_are_rejected(change: dict[str, Any], message: str) -> None:
    question = make_record().question
    if "settings" in change:
        change = {"settings": dataclasses.replace(question.settings, **change["settings"])}
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(question, **change)
