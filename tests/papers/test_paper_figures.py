"""The papers' figures: every entry fits its studies, and draws what the records hold."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.nn.terms import normalise_diagonal
from qkvary.papers.figure_charts import normalise_scores
from qkvary.papers.figure_records import Printed, StudyRecords, read_records
from qkvary.papers.figures_report import paper_report
from qkvary.papers.paper_figures import PAPER_FIGURES, Panel, PaperFigure, Records
from qkvary.reports.page import render_page
from qkvary.reports.report import Bullets, Chart, Group, Report, walk
from qkvary.reports.run_tables import curve_table
from qkvary.reports.tables import Table, table_csv
from qkvary.storage.errors import DamagedError
from qkvary.storage.journal import Journal
from qkvary.studies.catalog import load_study
from qkvary.studies.results.summary import LearningCurve
from qkvary.studies.running.store import JOURNAL_NAME, RunResult, Store
from tests.conftest import Typed
from tests.studies.made_up import make_record

KEPT = Path(__file__).parents[2] / "studies"


def curve(
    variant: str,
    values: Sequence[float],
    *,
    setting: str = "mnist",
    quantity: str = "validation loss",
    every: int = 300,
) -> LearningCurve:
    return LearningCurve(
        setting=setting,
        variant=variant,
        quantity=quantity,
        steps=tuple(every * (index + 1) for index in range(len(values))),
        seconds=tuple(float(index) for index in range(len(values))),
        mean=tuple(values),
        low=tuple(value - 0.25 for value in values),
        high=tuple(value + 0.5 for value in values),
        runs=(3,) * len(values),
    )


def write_tables(folder: Path, curves: Sequence[LearningCurve], study: str = "mnist-quick") -> Path:
    """Tables as a report of a study has them."""
    path = folder / study / "tables" / "curves.csv"
    path.parent.mkdir(parents=True)
    path.write_text(table_csv(curve_table(curves, "curves")), "utf-8")
    return path


def charts(report: Report, key: str) -> list[Chart]:
    section = next(one for one in report.sections if one.key == key)
    return [block for block in walk(section.blocks) if isinstance(block, Chart)]


def test_means_are_over_the_settings_that_all_variants_have() -> None:
    panel = Panel(
        title="Swap",
        records=(Records(study="synthetic-published", task="swap", where={}, differs=""),),
        quantities=("validation loss",),
    )
    figure = PaperFigure(
        name="key-value-figure-2", paper="", title="", kind="curves", variants=("QKV", "Q=K-V"),
        panels=(panel,),
    )  # fmt: skip
    study = load_study("synthetic-published")
    names = [one.name for one in study.settings if one.task.name == "swap"][:2]
    both = [curve(label, (1.0, 2.0), setting=names[0]) for label in figure.variants]
    more = curve("QKV", (9.0, 9.0), setting=names[1])
    elsewhere = curve("QKV", (9.0, 9.0), setting="reverse-d64-L2-H2-n64")
    known = StudyRecords(study=study, curves=(*both, more, elsewhere))
    report = paper_report([figure], lambda _: known)
    (chart,) = charts(report, figure.name)
    assert chart.detail == "synthetic-published; 1 of 16 settings; 3 runs a variant"
    (group,) = (block for block in walk(report.sections[1].blocks) if isinstance(block, Group))
    assert group.notes == ("synthetic-published: Swap has runs of 2 of the 16 configurations.",)
    assert chart.draw().description.startswith("Last values: QKV 2.00; Q=K-V 2.00.")


def test_tables_give_back_the_curves(tmp_path: Path) -> None:
    curves = (curve("QKV", (0.5, float("nan"))), curve("(Q=K-V)+", (1 / 3, 1e-9)))
    write_tables(tmp_path, curves)
    found = read_records("mnist-quick", Store(tmp_path / "runs"), tmp_path)
    assert repr(found.curves) == repr(curves)
    assert read_records("mnist-quick", Store(tmp_path / "runs"), None).curves == ()


@pytest.mark.parametrize(
    "damage", ["step,loss\r\n1,2\r\n", "\x00", 'setting,"', "not\xffutf"], ids=repr
)
def test_other_tables_are_refused_with_their_name(
    tmp_path: Path, damage: str, typed: Typed
) -> None:
    path = write_tables(tmp_path, [curve("QKV", (0.5,))])
    path.write_bytes(damage.encode("latin-1"))
    with pytest.raises(DamagedError, match=r"curves\.csv"):
        read_records("mnist-quick", Store(tmp_path / "runs"), tmp_path)
    to = ("--out", tmp_path / "runs", "--to", tmp_path / "to")
    typed("figures", "key-value-figure-4", "--tables", tmp_path, *to, code=3)
    assert not (tmp_path / "to").exists()


def test_runs_of_a_folder_come_before_tables(tmp_path: Path) -> None:
    study, store = load_study("numbers-quick"), Store(tmp_path / "runs")
    cell = study.cells()[0]
    claim = store.claim(cell.run.identity())
    assert claim is not None
    journal = Journal(claim.directory / JOURNAL_NAME, b"")
    journal.append({"event": "validation", "step": 49, "loss": 2.75, "seconds": 5.0})
    journal.close()
    claim.finish(RunResult(record=make_record(cell, 0.5)))
    write_tables(tmp_path, [curve("QKV", (9.0,), setting=cell.setting)], "numbers-quick")
    found = read_records("numbers-quick", store, tmp_path)
    (own,) = (one for one in found.curves if one.quantity == "validation loss")
    assert (own.steps, own.mean) == ((49,), (2.75,))


def test_report_shows_what_is_there_and_names_what_is_not(tmp_path: Path) -> None:
    figure = PAPER_FIGURES["key-value-figure-4"]
    values = {"QKV": (0.5, 0.25), "Q=K-V": (0.75, 0.5), "Q-K=V": (7.0, 7.0)}
    known = StudyRecords(
        study=load_study("mnist-quick"),
        curves=tuple(curve(label, losses) for label, losses in values.items()),
        printed=tuple(
            Printed(table=name, variant="QKV", column="mnist", published=0.981, ours=0.9)
            for name in ("key-value-table-3", "three-projections-table-3")
        ),
    )
    report = paper_report(
        [figure],
        lambda name: known if name == "mnist-quick" else StudyRecords(study=load_study(name)),
    )
    (chart,) = charts(report, figure.name)
    assert (chart.caption, chart.detail) == ("MNIST", "mnist-quick; 3 runs a variant")
    # The paper's figure has three variants.
    assert chart.draw().description.startswith("Last values: QKV 0.250; Q=K-V 0.500.")
    blocks = walk(report.sections[1].blocks)
    (printed,) = (block for block in blocks if isinstance(block, Table))
    assert [[cell.raw for cell in row] for row in printed.rows] == [
        ["QKV", "MNIST", 0.981, 0.9, pytest.approx(-0.081), "mnist-quick"]
    ]
    (missing,) = (block for block in blocks if isinstance(block, Bullets))
    assert [text.partition(":")[0] for text in missing.items] == [
        "FashionMNIST", "CIFAR-10", "CIFAR-100", "Set anomaly",
    ]  # fmt: skip
    assert report.data["figures"][0]["sources"] == ("mnist-quick",)
    assert "Figure 4: Loss over time, vision tasks" in render_page(report)


def test_what_is_compared_is_noted(tmp_path: Path) -> None:
    """Our loss of translation is over the test sentences, the published one is not."""
    figure = PAPER_FIGURES["key-value-figure-7"]
    setting = "en-de-d128-L2-H4"
    path = write_tables(tmp_path, [curve("QKV", (0.5,), setting=setting)], "translation-published")
    note = "The mean of our runs, over the test sentences"
    published = path.with_name("published-1-key-value-notebook-translation.csv")
    published.write_text(
        f'variant,column,published,ours,note\r\nQKV,loss_128_4_run_0,0.951,0.949,"{note}"\r\n'
    )
    report = paper_report([figure], lambda name: read_records(name, Store(tmp_path), tmp_path))
    (printed,) = (one for one in walk(report.sections[1].blocks) if isinstance(one, Table))
    (row,) = printed.rows
    assert row[-1].raw == note


def test_command_draws_from_tables(tmp_path: Path, typed: Typed) -> None:
    write_tables(tmp_path, [curve("QKV", (0.5, 0.25)), curve("Q=K-V", (0.5, 0.5))])
    to = ("--out", tmp_path / "runs", "--to", tmp_path / "to", "--format", "svg")
    found = typed.json("figures", "key-value-figure-4", "--tables", tmp_path, *to)
    assert [len(one["missing"]) for one in found["figures"]] == [4]
    (path,) = (tmp_path / "to" / "figures").iterdir()
    assert path.name == "key-value-figure-4-validation-loss.svg"
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("is_scaled_first", [False, True])
def test_scores_of_the_drawing_are_those_of_the_layer(is_scaled_first: bool) -> None:
    keys = np.random.default_rng(7).standard_normal((5, 3))
    scale = 3**-0.5
    ours = normalise_scores(keys)
    expected = scale * ours
    if is_scaled_first:
        np.fill_diagonal(expected, ours.diagonal())
    variant = dataclasses.replace(parse_variant("Q=K-V"), diagonal="mean")
    key = torch.from_numpy(keys)[None, None]
    found = normalise_diagonal(
        key @ key.mT * scale,
        key.square().sum(dim=-1) * scale,
        AttentionConfig(d_model=3, num_heads=1, variant=variant),
        factor=1.0 if is_scaled_first else scale,
        valid=None,
        documents=None,
    )
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1e-14)


def test_errors_of_a_change_of_basis_are_those_of_the_kept_table() -> None:
    """The figure's chart names the errors that ``results.csv`` of the experiment has."""
    figure = PAPER_FIGURES["query-identity-figure-2"]
    report = paper_report([figure], lambda name: StudyRecords(study=load_study(name)))
    assert "1 can be drawn in full, and 0 in part" in report.lead
    found = {one.caption: one.draw() for one in charts(report, figure.name)}
    with (KEPT / "query_identity/mlp-basis-transfer/tables/results.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["agrees"] == "yes"]
    assert len(rows) == 6
    assert set(found) == {f"{row['target']} {row['biases']} biases" for row in rows}
    for row in rows:
        said = found[f"{row['target']} {row['biases']} biases"].description
        for learner, column in (("student", "student_error"), ("linear map", "linear_error")):
            assert f"{learner}, width {row['d']}: {100 * float(row[column]):.2f} %" in said
