import dataclasses
import random
import re
from pathlib import Path

import pytest

from qkvary.reports import run_tables, study_tables
from qkvary.reports.markdown import render_markdown
from qkvary.reports.page import render_page
from qkvary.reports.report import Bullets, Chart, Fold, Group, Prose, Report, Section, walk
from qkvary.reports.study import records_digest, study_report
from qkvary.reports.tables import Table
from qkvary.studies.catalog import load_study
from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import RunRow
from tests.reports.synthetic import MORE_VARIANTS, make_attention, make_study, make_summary
from tests.studies.made_up import make_record

BIG = 1_500_000


def section(report: Report, key: str) -> Section:
    return next(one for one in report.sections if one.key == key)


def tables(report: Report) -> dict[str, Table]:
    blocks = [block for one in report.sections for block in walk(one.blocks)]
    return {block.key: block for block in blocks if isinstance(block, Table)}


def test_sections_come_in_their_order() -> None:
    summary = make_summary()
    report = study_report(summary, make_attention(summary, 5))
    assert [one.key for one in report.sections] == [
        *("results", "frontiers", "solving", "curves", "attention"),
        *("variants", "published", "rerun"),
    ]


def test_the_page_opens_with_the_short_answer_and_its_picture() -> None:
    summary = make_summary(("QKV", "Q-K=V", "MQA"), 2)
    report = study_report(summary)
    assert report.answer == summary.headline
    fold = section(report, "results").blocks[0]
    assert isinstance(fold, Fold)
    sentences = (*summary.answers, *(one.answer for one in summary.contrasts))
    assert fold.blocks == (Bullets(sentences),)
    assert report.picture is not None
    assert report.picture.file == "answer"
    page = render_page(report)
    assert page.index('class="picture"') < page.index("<aside") < page.index("<nav")
    assert 'http-equiv="refresh"' not in page
    assert 'http-equiv="refresh" content="20"' in render_page(report, refresh_seconds=20)


def test_the_picture_shows_the_cache_where_a_table_has_one() -> None:
    """The first tables of a running study may be those of networks without a cache."""
    summary = make_summary(("QKV", "Q-K=V", "MQA"), 2)
    assert summary.headline_table == "average of reverse, sort, swap"
    picture = study_report(summary).picture
    assert picture is not None
    assert picture.caption == "characters: quality against cache per token"
    without = tuple(one for one in summary.frontiers if one.axis == "parameters")
    picture = study_report(dataclasses.replace(summary, frontiers=without)).picture
    assert picture is not None
    assert picture.caption == f"{summary.headline_table}: quality against parameters"


def test_without_finished_pairs_the_page_says_so_first() -> None:
    summary = summarise(make_study(), [])
    report = study_report(summary)
    assert report.answer == summary.answers
    assert report.picture is None


def test_terms_that_all_variants_share_are_said_once() -> None:
    labels = ("QKV@rotary", "Q-K=V@rotary", "MQA@rotary")
    summary = make_summary(labels)
    report = study_report(summary)
    assert ("all variants with", "rotary") in report.facts
    text = render_page(dataclasses.replace(report, sections=report.sections[:4]))
    assert "Q-K=V" in text
    assert "@rotary" not in text
    runs = tables(report)["runs"].rows
    assert any("Q-K=V@rotary" in cell.text for row in runs for cell in row)
    mixed = study_report(make_summary(("QKV", "Q-K=V@rotary"), 2))
    assert "@rotary" in render_page(mixed)


def test_every_planned_run_has_a_row() -> None:
    """Nothing is dropped silently."""
    summary = make_summary()
    found = tables(study_report(summary))
    assert len(found["runs"].rows) == len(summary.runs) == 240
    assert len(found["problems"].rows) == 3
    assert len(found["overview"].rows) == len(summary.variants)


def test_contrasts_are_near_the_answer_with_their_correction() -> None:
    summary = make_summary()
    report = study_report(summary)
    table = tables(report)["contrasts"]
    assert len(table.rows) == len(summary.contrasts) == 4
    assert table.title == (
        "Planned contrasts: paired differences, 95 % intervals corrected for 20 comparisons"
    )
    first = table.rows[0]
    assert first[0].text == "I-K=V against Q=K=V"
    assert first[1].text.startswith("+0.")
    assert first[1].below[0].startswith("▲ [+0.")
    detectable, pairs = first[1].below[1:]
    assert re.fullmatch(r"detectable \d\.\d+", detectable)
    assert pairs == "4 of 5 pairs"
    assert "contrasts" not in tables(study_report(make_summary(("QKV", "Q=K=V"), 2)))


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_in_every_table_of_results(seed: int) -> None:
    """Whatever became of the runs, the printed counts add up to the plan."""
    draw = random.Random(seed)
    summary = make_summary()
    states = ("done", "failed", "diverged", "missing")
    runs = tuple(dataclasses.replace(run, state=draw.choice(states)) for run in summary.runs)
    changed = dataclasses.replace(summary, runs=runs)
    shown = study_tables.matrix(changed)
    for row, variant in zip(shown.rows, changed.variants, strict=True):
        own = [run for run in runs if run.variant == variant]
        assert row[-1].raw == sum(run.state == "done" for run in own)
        counted = [
            int(number) for number in re.findall(r"(\d+) (?:failed|diverged|missing)", row[-1].text)
        ]
        assert sum(counted) + int(row[-1].raw) == len(own)


def test_tables_say_what_is_missing_where_it_is_missing() -> None:
    summary = make_summary()
    for table in summary.tables:
        shown = study_tables.result_table(table, summary, "results")
        for row, cells in zip(table.rows, shown.rows, strict=True):
            assert cells[1].text.startswith(f"{row.counts.done}/{row.counts.planned}")
            assert ("diverged" in cells[1].text) == bool(row.counts.diverged)


def test_an_empty_store_makes_a_page() -> None:
    summary = make_summary()
    bare = {"state": "missing", "value": None, "metrics": (), "steps_to_solve": None}
    runs = tuple(dataclasses.replace(run, **bare) for run in summary.runs)
    empty = dataclasses.replace(
        summary,
        runs=runs,
        tables=(),
        frontiers=(),
        curves=(),
        published=(),
        environments=(),
        answers=(),
        started=None,
        ended=None,
        training_seconds=0.0,
        total_seconds=0.0,
    )
    report = study_report(empty)
    assert len(tables(report)["runs"].rows) == len(runs)
    assert "<h1>" in render_page(report)


def test_digest_changes_with_any_record() -> None:
    runs = make_summary().runs
    changed = (dataclasses.replace(runs[0], metrics=(("test_accuracy", 0.5),)), *runs[1:])
    assert records_digest(runs) != records_digest(changed)
    assert records_digest(runs) == records_digest(
        tuple(RunRow(**dataclasses.asdict(run)) for run in runs)
    )
    rerun = section(study_report(make_summary()), "rerun")
    assert records_digest(runs)[:16] in str(rerun.blocks)


@pytest.mark.slow
def test_five_hundred_runs_fit() -> None:
    """25 variants, 4 settings, 5 seeds."""
    summary = make_summary(MORE_VARIANTS, 5)
    assert len(summary.runs) == 500
    assert len(render_page(study_report(summary, make_attention(summary))).encode()) < 2 * BIG


def test_many_settings_are_cut_and_said() -> None:
    summary = make_summary()
    more = tuple(
        dataclasses.replace(curve, setting=f"{curve.setting} {copy}")
        for copy in range(8)
        for curve in summary.curves
    )
    curves = section(study_report(dataclasses.replace(summary, curves=more)), "curves")
    assert re.search(r"\d+ more settings would make this page too large", str(curves.blocks[-1]))
    panels = [one for one in walk(curves.blocks) if isinstance(one, Group) and one.layout]
    assert sum(len(group.blocks) for group in panels) <= 2 * 320


def test_curves_are_shown_by_quantity_and_axis() -> None:
    curves = section(study_report(make_summary()), "curves")
    assert [choice.options for choice in curves.choices] == [
        ("validation", "training loss"),
        ("steps", "seconds of training"),
    ]
    first = curves.blocks[0]
    assert isinstance(first, Group)
    groups = [one for one in first.blocks if isinstance(one, Group)]
    assert [one.options for one in groups] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [bool(one.file) for one in groups] == [True, False, False, False]
    assert isinstance(first.blocks[-1], Fold)


def test_costs_are_a_choice_where_there_are_several() -> None:
    summary = make_summary()
    frontiers = section(study_report(summary), "frontiers")
    (choice,) = frontiers.choices
    groups = [one for one in frontiers.blocks if isinstance(one, Group)]
    assert [one.options for one in groups] == [(1,), (2,), (3,), (4,)]
    assert choice.options[0] == "cache per token"
    axis = summary.frontiers[0].axis
    one = tuple(frontier for frontier in summary.frontiers if frontier.axis == axis)
    alone = study_report(dataclasses.replace(summary, frontiers=one))
    assert section(alone, "frontiers").choices == ()


def test_published_language_models_stand_beside_variants_of_language_models() -> None:
    summary = make_summary(("QKV", "Q-K=V"), 2)
    blocks = section(study_report(summary), "published").blocks
    (fold,) = (block for block in blocks if isinstance(block, Fold))
    note = fold.blocks[0]
    assert isinstance(note, Prose)
    assert "not of the networks of this study" in note.text
    translators = [dataclasses.replace(one, is_language=False) for one in summary.tables]
    for other in (
        make_summary(("QKV", "I-K=V"), 2),
        dataclasses.replace(summary, tables=tuple(translators)),
    ):
        sections = (one for one in study_report(other).sections if one.key == "published")
        assert not any(isinstance(block, Fold) for one in sections for block in one.blocks)


def test_what_chance_scores_stands_below_every_table_with_results() -> None:
    study = load_study("numbers-paper")
    study = dataclasses.replace(
        study, settings=study.settings[:2], seeds=(0, 1), contrasts=(("(Q=K-V)+", "Q=K-V"),)
    )
    records = [
        make_record(cell, 0.0, metric="test_loss", metrics={"test_loss": 1.0 + cell.seed})
        for cell in study.cells()
    ]
    curve = [{"event": "validation", "step": 1, "seconds": 1.0, "loss": 2.0}]
    curves = {cell.run_key: curve for cell in study.cells()}
    report = study_report(summarise(study, records, curves=curves))
    (note,) = {setting.note for setting in study.settings}
    shown = [block for one in report.sections for block in walk(one.blocks)]
    behind = [block.table for block in shown if isinstance(block, Chart)]
    found = {
        table.key.split("-")[0]: note in table.notes
        for table in (*shown, *behind)
        if isinstance(table, Table)
    }
    without = {name for name, has in found.items() if not has}
    assert without == {"costs", "environments"}
    assert {"overview", "contrasts", "results", "frontier", "curves", "published", "runs"} <= set(
        found
    )


def test_a_validation_split_is_not_called_test() -> None:
    """The last tenth of the characters is scored as both; the sequences have a split for each."""
    report = study_report(make_summary(("QKV", "Q-K=V", "MQA"), 2))
    for text in (render_page(report), render_markdown(report)):
        assert "final validation loss" in text
        assert "test loss" not in text
        assert "test accuracy" in text
    assert "final validation accuracy" not in render_page(report)
    runs = [column.title for column in tables(report)["runs"].columns]
    assert "final validation loss" in runs
    assert "test accuracy" in runs


def test_a_column_of_runs_with_and_without_a_test_split_names_both() -> None:
    row = make_summary().runs[0]
    scored = dataclasses.replace(row, metrics=(("test_loss", 1.0),))
    mixed = (scored, dataclasses.replace(scored, is_tested=False))
    titles = [column.title for column in run_tables.run_table(mixed, "runs", "").columns]
    assert "final validation loss or test loss" in titles


def test_kept_pages_are_small() -> None:
    pages = [*(Path(__file__).parents[2] / "studies").glob("**/report.html")]
    assert len(pages) >= 10
    assert [page.parent.name for page in pages if page.stat().st_size > BIG] == []


def test_the_style_reaches_what_drawings_share() -> None:
    """Where a drawing refers to shared parts, a rule for what is inside an svg does not apply."""
    summary = make_summary()
    page = render_page(study_report(summary, make_attention(summary, 5)))
    shared = re.findall(r'<g id="d\d+-s\d+">(.*?)</g>', page)
    classes = {
        name
        for part in shared
        for found in re.findall('class="(.*?)"', part)
        for name in found.split()
    }
    assert {"plot", "grid", "tick", "behind", "map-frame", "right-cell"} <= classes
    assert page.count("<use ") > 100
    assert [name for name in sorted(classes) if f"g .{name} {{" not in page] == []
