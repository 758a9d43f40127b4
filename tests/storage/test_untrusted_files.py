"""Files of others are read whole or refused in a sentence, and never unpickled."""

import json
import os
from pathlib import Path

import pytest
from torch import nn

from qkvary.storage.errors import DamagedError, UnsafeError, UsageError
from qkvary.storage.untrusted_files import (
    MAX_JSON_DEPTH,
    MAX_REASON,
    parse_json,
    read_file,
    read_path,
    short_reason,
)


def test_a_file_is_read_whole_or_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    assert read_file(tmp_path / "file") == b"some bytes"
    assert read_file(tmp_path / "file", limit=10) == b"some bytes"
    with pytest.raises(DamagedError, match=r"expected at most 9 bytes in .*, got 10"):
        read_file(tmp_path / "file", limit=9)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="expected a regular file, got"):
            read_file(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_file(tmp_path / "nowhere")


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x80\x02c", b"\x80\x04\x95"])
def test_a_pickle_is_refused(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(start + b"os\nsystem\n")
    with pytest.raises(UnsafeError, match="is a pickle, which can execute code"):
        read_file(tmp_path / "file")


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_deep_json_is_refused(pair: str) -> None:
    first, last = ("[", "]") if pair == "[]" else ('{"a":', "}")
    fine = first * MAX_JSON_DEPTH + "1" + last * MAX_JSON_DEPTH
    assert parse_json(fine) == json.loads(fine)
    for depth in (MAX_JSON_DEPTH + 1, 500, 100_000):
        with pytest.raises(ValueError, match="expected at most 100 levels of JSON, got more"):
            parse_json(first * depth + "1" + last * depth)
        with pytest.raises(ValueError, match=r"levels of JSON|Expecting"):
            parse_json(first * depth)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps("[" * 1000 + '{\\"'),
        json.dumps({"[": ["]", {"{": "}" * 500}] * 60}),
        json.dumps([[], {}, [[]], {"a": [{}]}] * 400),
        json.dumps({f"[{number}": ["\\", '"[', "é"] for number in range(300)}),
    ],
)
def test_what_is_wide_or_quoted_is_not_deep(text: str) -> None:
    assert parse_json(text) == json.loads(text)
    assert parse_json(text.encode()) == json.loads(text)


def test_invalid_json_keeps_its_reason() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        parse_json("[" * 150 + "]" * 60 + "}" * 90)
    with pytest.raises(ValueError, match="codec can't decode"):
        parse_json(b"\xff\xff[")


def test_a_reason_is_one_short_line() -> None:
    assert short_reason(ValueError("two\nlines")) == "two lines"
    assert short_reason(KeyError()) == "KeyError"
    assert len(short_reason(ValueError("x" * 10_000))) == MAX_REASON


@pytest.mark.parametrize("given", [None, 3, b"bytes", nn.Sequential(nn.Linear(2, 3), nn.ReLU())])
def test_other_arguments_are_refused_in_one_line(given: object) -> None:
    with pytest.raises(UsageError, match="expected the path of a folder, got ") as caught:
        read_path(given, "the path of a folder")
    assert "\n" not in str(caught.value)
