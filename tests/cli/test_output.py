"""What commands print: one JSON document, text that is never markup, no figure made up."""

import dataclasses
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.cli.app import console, print_json, printable
from qkvary.reports.terminal import sparkline


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: float
    where: Path


def test_json_is_one_document_with_a_schema_version(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"points": (Point(math.nan, Path("a/b")), Point(2.5, Path("c"))), "none": None})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {
        "schema_version": 1,
        "points": [{"x": None, "where": "a/b"}, {"x": 2.5, "where": "c"}],
        "none": None,
    }
    assert printed.startswith('{\n  "schema_version": 1')


def test_a_stream_that_knows_ascii_gets_escapes() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    screen = console(stream)
    screen.print("a – 日", highlight=False)
    stream.flush()
    assert written.getvalue() == b"a \\u2013 \\u65e5\n"


@pytest.mark.parametrize("columns", ["0", "-3", "abc", ""])
def test_a_width_that_is_no_number_is_ignored(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal emulator may set COLUMNS to 0, with which rich prints nothing."""
    monkeypatch.setenv("COLUMNS", columns)
    assert console(io.StringIO(), width=77).width == 77


def test_sparkline_rises_with_its_values() -> None:
    assert len(set(sparkline([0.0, 1.0, 2.0, 3.0]))) == 4
    assert (sparkline([math.nan, 1.0])[0], sparkline([])) == ("!", "")


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert all(letter.isprintable() or letter == "\n" for letter in printable(text))
