import dataclasses
import random
import re

import pytest

from qkvary.reports import study_tables
from qkvary.reports.page import render_page
from qkvary.reports.report import Bullets, Chart, Fold, walk
from qkvary.reports.study import study_report
from qkvary.reports.tables import Table
from qkvary.studies.catalog import load_study
from qkvary.studies.results.analysis import summarise
from tests.reports.subjects import section
from tests.reports.synthetic import make_study, make_summary
from tests.studies.made_up import make_record


def test_the_page_opens_with_the_short_answer_and_its_picture() -> None:
    summary = make_summary(("QKV", "Q-K=V", "MQA"), 2)
    report = study_report(summary)
    assert report.answer == summary.headline
    sentences = (*summary.answers, *(one.answer for one in summary.contrasts))
    fold = Fold(title="Every comparison in words", blocks=(Bullets(sentences),))
    assert fold in section(report, "results").blocks
    assert report.picture is not None
    assert report.picture.file == "answer"
    assert " of the seeds, and the grey line is the mean of QKV." in section(report, "curves").lead
    alone = section(study_report(make_summary(("Q-K=V@rotary",), 2)), "curves")
    assert ("grey" in alone.lead, "Q-K=V@rotary" in repr(alone.blocks)) == (False, True)
    page = render_page(report)
    assert page.index('class="picture"') < page.index("<aside") < page.index("<nav")
    assert 'http-equiv="refresh"' not in page
    assert 'http-equiv="refresh" content="20"' in render_page(report, refresh_seconds=20)


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_in_every_table_of_results(seed: int) -> None:
    """Whatever became of the runs, the printed counts add up to the plan."""
    draw = random.Random(seed)
    summary = make_summary()
    states = ("done", "failed", "diverged", "missing")
    runs = tuple(dataclasses.replace(run, state=draw.choice(states)) for run in summary.runs)
    changed = dataclasses.replace(summary, runs=runs)
    tables = study_tables.main_tables(changed)
    alone = study_tables.matrix(changed, tables[:1], "key", "title")
    assert not any("/" in text for row in alone.rows for cell in row[:-1] for text in cell.below)
    shown = study_tables.matrix(changed, tables, "key", "title")
    for row, variant in zip(shown.rows, changed.variants, strict=True):
        own = [run for run in runs if run.variant == variant]
        assert row[-1].raw == sum(run.state == "done" for run in own)
        counted = [
            int(number) for number in re.findall(r"(\d+) (?:failed|diverged|missing)", row[-1].text)
        ]
        assert sum(counted) + int(row[-1].raw) == len(own)


def test_an_empty_store_makes_a_page() -> None:
    study = make_study()
    report = study_report(summarise(study, []))
    (runs,) = (table for table in report.datasets if table.key == "runs")
    assert len(runs.rows) == len(study.cells())
    assert "<h1>" in render_page(report)


def test_what_chance_scores_stands_below_every_table_with_results() -> None:
    study = load_study("numbers-paper")
    study = dataclasses.replace(
        study, settings=study.settings[:2], seeds=(0, 1), contrasts=(("(Q=K-V)+", "Q=K-V"),)
    )
    records = [
        make_record(cell, 0.0, metric="test_loss", metrics={"test_loss": 1.0 + cell.seed})
        for cell in study.cells()
    ]
    report = study_report(summarise(study, records))
    (note,) = {setting.note for setting in study.settings}
    shown = [block for one in report.sections for block in walk(one.blocks)]
    behind = [block.table for block in shown if isinstance(block, Chart)]
    found = {
        table.key.split("-")[0]: note in table.notes
        for table in (*shown, *behind)
        if isinstance(table, Table)
    }
    without = {name for name, has in found.items() if not has}
    assert without == {"costs"}
    assert {"overview", "contrasts", "published"} <= set(found)
