"""A document is valid, newer or damaged, for any version key."""

import json
from typing import Any

import pytest

from qkvary.storage.errors import DamagedError, NewerFormatError
from qkvary.storage.jsonvalues import DocumentFormat

FORMAT = DocumentFormat(name="a list of guests", version=3, key="edition", remedy="ask them again")


def guests(fields: dict[str, Any]) -> tuple[str, ...]:
    if len(fields["guests"]) > 2:
        raise ValueError("too\nmany guests")
    return tuple(fields["guests"])


def test_what_is_written_is_read() -> None:
    data = FORMAT.write({"guests": ["Ann", "Bob"]})
    assert json.loads(data) == {"edition": 3, "guests": ["Ann", "Bob"]}
    assert data == FORMAT.write({"edition": 1, "guests": ("Ann", "Bob")})
    assert data.endswith(b"\n")
    assert FORMAT.read(data, "here", guests) == ("Ann", "Bob")
    assert FORMAT.read(data, "here", dict) == {"guests": ["Ann", "Bob"]}


def test_a_newer_document_is_distinguished() -> None:
    with pytest.raises(NewerFormatError) as caught:
        FORMAT.read(b'{"edition": 4}', "here", guests)
    assert (
        str(caught.value) == "here has edition 4, but this qkvary reads only 3; use a newer qkvary"
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"7", "expected an object"),
        (b"[" * 100_000, ""),
        (b"{}", "expected edition 3, got None"),
        (b'{"edition": 2}', "expected edition 3, got 2"),
        (b'{"edition": "4"}', "expected edition 3, got '4'"),
        (b'{"edition": 3}', "'guests' is missing"),
        (b'{"edition": 3, "guests": 3}', "object of type 'int' has no len()"),
        (b'{"edition": 3, "guests": ["a", "b", "c"]}', "too many guests"),
    ],
)
def test_a_damaged_document_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedError) as caught:
        FORMAT.read(data, "here", guests)
    said = str(caught.value)
    assert said.startswith(f"here is not a list of guests: {reason}")
    assert said.endswith("; ask them again")
    assert len(said) < 300


def test_a_version_in_something_else_is_checked_alone() -> None:
    FORMAT.check({**FORMAT.version_field, "more": 1}, "here")
    with pytest.raises(NewerFormatError, match="here has edition 5"):
        FORMAT.check({"edition": 5}, "here")
    with pytest.raises(DamagedError, match="here is not a list of guests: expected edition 3"):
        FORMAT.check({}, "here")
