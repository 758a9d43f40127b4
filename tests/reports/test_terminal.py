import io
from dataclasses import replace

import pytest
from rich.console import Console

from qkvary.reports.report import Prose, Report, Section
from qkvary.reports.tables import Brief, Cell, number, shorten, tabulate, word
from qkvary.reports.terminal import print_report, print_table
from tests.reports.hostile import PAYLOADS
from tests.reports.subjects import SUBJECTS, study
from tests.reports.test_page import everything


def printed(report: Report, width: int = 80, colour: bool = False, full: bool = False) -> str:
    stream = io.StringIO()
    print_report(report, Console(file=stream, width=width, force_terminal=colour), full=full)
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_fits_the_terminal(subject: str, width: int) -> None:
    report = SUBJECTS[subject]()
    text = printed(report, width)
    assert max(len(line) for line in text.splitlines()) <= width
    joined = " ".join(text.split())
    for said in (report.question, *report.answer, *report.caveats):
        assert " ".join(said.split()) in joined


def test_a_table_that_does_not_fit_is_printed_in_parts() -> None:
    stream = io.StringIO()
    rows = [{"name": name, **{f"c{n}": f"{name}{n}" * 4 for n in range(5)}} for name in "ab"]
    columns = (number(f"c{n}", f"column {n}") for n in range(5))
    table = tabulate("key", "", rows, word("name"), *columns, main=True)
    print_table(Console(file=stream, width=30), table)
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["name", "a", "b"] * 3
    assert all(len(line) <= 30 for line in lines)
    text = stream.getvalue()
    assert all(cell in text for row in rows for cell in row.values())


def test_the_rest_of_a_report_is_printed_on_request() -> None:
    brief = Brief(columns=("name", "b"), rows=2)
    rows = [
        {"name": name, "a": f"a{name}", "b": Cell(raw=1, text=f"b{name}", below=("more",))}
        for name in "xyz"
    ]
    fields = (word("name"), number("a"), number("b"))
    table = tabulate("key", "Table", rows, *fields, notes=("first", "second"), brief=brief)
    sections = (
        Section(key="one", title="One", blocks=(table,), brief=True),
        Section(key="two", title="Two", blocks=(Prose("details"),), full=True),
        Section(key="three", title="Three", blocks=(Prose("the page alone"),)),
    )
    report = Report(subject="subject", question="Which?", sections=sections)
    short, whole = printed(report), printed(report, full=True)
    assert [line.split() for line in short.splitlines() if line][2:] == [
        ["Table"],
        ["name", "b"],
        ["x", "bx"],
        ["y", "by"],
        ["and", "1", "more", "row"],
        ["first"],
        ["The", "whole", "report:", "--full"],
    ]
    for text in ("ax", "bz", "more", "second", "Two", "details"):
        assert text in whole
    assert "the page alone" not in whole
    assert "--full" not in whole
    assert "--full" not in printed(SUBJECTS["study"]())
    shown = shorten(replace(table, brief=Brief(rows=1)))
    assert [[cell.text for cell in row] for row in shown.rows] == [["x", "ax", "bx"]]


def test_hostile_names_are_plain_text() -> None:
    """No markup, no escape sequences."""
    for payload in PAYLOADS[::2]:
        text = printed(everything(payload))
        assert "\x1b" not in text
        assert "\x00" not in text
    assert "[bold]" in printed(study("[bold]"))
