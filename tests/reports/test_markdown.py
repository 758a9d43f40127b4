import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from qkvary.reports.files import make_files
from qkvary.reports.markdown import render_markdown, table_markdown
from qkvary.reports.report import Chart, Code, Fold, Group, Report, Section, walk
from qkvary.reports.study import study_report
from qkvary.reports.tables import Cell, Table, named
from qkvary.text import names
from tests.reports.subjects import SUBJECTS
from tests.reports.synthetic import make_summary
from tests.reports.test_tables import table


def test_a_table_holds_what_is_printed() -> None:
    made = table(named("Q-K=V"), Cell(raw=-0.12345, text="−0.123", below=("[−0.2, 0]",)))
    assert table_markdown(made) == (
        "### A table\n\n| variant | mean |\n| --- | ---: |\n"
        "| Q-K=V | −0.123 \\[−0.2, 0\\] |\n\nA note.\n"
    )


def test_a_study_says_question_answers_and_tables() -> None:
    summary = make_summary()
    report = study_report(summary)
    text = render_markdown(report)
    assert text.startswith("# Do transformers need three projections")
    shown = [block for section in report.sections for block in walk(section.blocks)]
    tables = [block for block in shown if isinstance(block, Table)]
    behind = [block.table for block in shown if getattr(block, "table", None)]
    titled = [block for block in shown if isinstance(block, Group) and block.title]
    headed = [group for group in titled if f"\n### {names.markdown(group.title)}\n" in text]
    assert text.count("\n### ") == len(tables) + len(behind) + len(headed)
    assert summary.method.sentences[0] in text
    assert "does not recompute" in text
    assert f"qkvary study {summary.study} --seeds {summary.seeds[0]}-" in text
    assert all(value in text for _, value in summary.environments[0] if value.isalnum())
    assert "- I-K=V against Q=K=V" in text
    assert json.dumps(text)


@pytest.mark.parametrize("make", SUBJECTS.values(), ids=SUBJECTS)
def test_every_subject_says_its_answers_and_caveats(make: Callable[[], Report]) -> None:
    report = make()
    text = render_markdown(report)
    assert text.count("\n- ") >= len(report.answer) + len(report.caveats)
    for section in report.sections:
        has_text = any(
            one.table if isinstance(one, Chart) else not isinstance(one, Group | Fold)
            for one in walk(section.blocks)
        )
        assert (f"## {section.title}\n" in text) == has_text


def test_a_text_cannot_end_its_block() -> None:
    code = Code(("before", "```", "# after"), language="text")
    section = Section(key="texts", title="Texts", blocks=(code,))
    report = Report(subject="a", question="b", sections=(section,))
    assert "````text\nbefore\n```\n# after\n````\n" in render_markdown(report)


def test_a_document_shows_drawings_that_are_written_beside_it() -> None:
    report = study_report(make_summary(("QKV", "Q-K=V"), 2))
    assert report.picture is not None
    for one, shown in ((report, ["figures/answer.svg"]), (replace(report, picture=None), None)):
        files = make_files(one, ("markdown", "svg"))
        drawings = [name for name in files if name.endswith(".svg")]
        text = files[f"{report.stem}.md"].decode()
        assert re.findall(r"^!\[.*\]\((.*)\)$", text, re.MULTILINE) == (shown or drawings)
        assert len(drawings) > 5
        assert "![" not in make_files(one, ("markdown",))[f"{report.stem}.md"].decode()
