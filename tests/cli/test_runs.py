"""Status, show and report over a folder of runs that hold everything that can become of a run."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvary.reports.run import run_report
from qkvary.storage.durable import OwnerLock
from qkvary.storage.journal import Journal
from qkvary.storage.manifest import MANIFEST_NAME, describe, read_manifest
from qkvary.studies.running.runner import RunSummary
from qkvary.studies.running.store import JOURNAL_NAME, LOCK_NAME, RECORD_NAME, RunResult, Store
from qkvary.studies.study import Cell, Study
from qkvary.tasks.config import TranslationTaskConfig
from tests.conftest import Typed
from tests.studies.made_up import make_record, make_study

HOSTILE = "it \x1b[31mbroke\x1b[0m [red]badly[/red]"


def fill(store: Store, cell: Cell, outcome: float | str, **more: Any) -> None:
    claim = store.claim(cell.run.identity())
    assert claim is not None
    journal = Journal(claim.directory / JOURNAL_NAME, b"")
    for step in range(10, 60, 10):
        journal.append({"event": "train", "step": step, "loss": 1.0 / step, "seconds": 0.1 * step})
    journal.append({"event": "validation", "step": 50, "accuracy": 0.75, "seconds": 5.0})
    journal.close()
    claim.finish(RunResult(record=make_record(cell, outcome, **more)))


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    study = make_study(variants=("QKV", "Q-K=V", "MQA"), seeds=(1, 2))
    monkeypatch.setattr("qkvary.studies.catalog.load_study", lambda *_: study)
    return study


@pytest.fixture
def runs(study: Study, tmp_path: Path) -> Iterator[Path]:
    """Two runs done, one failed, one damaged, one running, one open."""
    store, cells = Store(tmp_path / "runs"), study.cells()
    fill(store, cells[0], 0.5)
    fill(store, cells[1], 0.75)
    fill(store, cells[2], "failed", message=HOSTILE)
    fill(store, cells[3], 0.25)
    record = store.directory(cells[3].run_key) / "record.json"
    record.write_bytes(record.read_bytes().replace(b"0.25", b"0.95"))
    running = store.directory(cells[4].run_key)
    running.mkdir(parents=True)
    lock = OwnerLock(running / LOCK_NAME)
    yield tmp_path / "runs"
    lock.release()


def test_status_counts_every_run_once(runs: Path, typed: Typed) -> None:
    expected = {"done": 2, "failed": 1, "diverged": 0, "running": 1, "open": 1, "damaged": 1}
    found = typed.json("status", "made-up", "--out", runs)["runs"]
    assert found == {"total": 6, **expected}
    found = typed.json("status", "--out", runs)["runs"]
    assert found == {"total": 5, **expected, "open": 0}


def test_status_names_owners_and_problems_as_text(runs: Path, typed: Typed) -> None:
    listed = typed.json("status", "made-up", "--out", runs)["listed"]
    notes = {run["state"]: run["note"] for run in listed}
    assert "process" in notes["running"]
    assert notes["failed"] == HOSTILE
    assert "record.json" in notes["damaged"]
    call = ("status", "made-up", "--problems", "--out", runs)
    assert {run["state"] for run in typed.json(*call)["listed"]} == {"failed", "damaged"}
    printed = typed(*call)
    assert "\\x1b[31mbroke" in printed
    assert "[red]badly[/red]" in printed
    assert "\x1b" not in printed


def test_status_names_the_variant_and_the_step_of_a_stopped_run(
    study: Study, tmp_path: Path, typed: Typed
) -> None:
    store, cell = Store(tmp_path / "runs"), study.cells()[1]
    claim = store.claim(cell.run.identity())
    assert claim is not None
    claim.release()
    (store.directory(cell.run_key) / "checkpoints" / f"step-{12:012}").mkdir(parents=True)
    (found,) = typed.json("status", "--out", store.path)["listed"]
    assert (found["group"], found["note"]) == (f"reverse {cell.variant}", "stopped at step 12")
    assert f"{cell.run_key[:12]} open: stopped at step 12" in typed("status", "--out", store.path)


def test_status_finds_a_file_that_was_changed(study: Study, tmp_path: Path, typed: Typed) -> None:
    store, key = Store(tmp_path / "runs"), study.cells()[0].run_key
    fill(store, study.cells()[0], 0.5)
    with (store.directory(key) / "metrics.jsonl").open("a") as log:
        log.write("x")
    (found,) = typed.json("status", "--problems", "--out", store.path)["listed"]
    assert (found["run_key"], found["state"]) == (key, "damaged")
    assert "metrics.jsonl" in found["note"]


def test_show_by_the_start_of_a_key(runs: Path, study: Study, typed: Typed) -> None:
    key = study.cells()[1].run_key
    printed = typed("show", key[:10].upper(), "--out", runs)
    for text in (f"run {key}", "state: done", "Q-K=V", "train loss, steps 10 to 50", "first 0.100"):
        assert text in printed


def test_show_finds_a_run_as_generate_does(
    runs: Path, study: Study, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = study.cells()[1].run_key
    folder = Store(runs).directory(key)
    for reference in (runs / key[:8], folder, f"{folder}/"):
        assert f"run {key}" in typed("show", reference)
    monkeypatch.chdir(folder.parent)
    assert f"run {key}" in typed("show", key)


def test_show_draws_whole_numbers_and_leaves_out_what_is_not_finite() -> None:
    log = [
        {"event": "train", "step": 1, "loss": math.inf},
        {"event": "train", "step": 2, "loss": 3},
    ]
    (section,) = run_report("k", "open", None, None, log).sections
    assert section.title == "train loss, steps 2 to 2"


def test_show_as_json_has_record_and_events(runs: Path, study: Study, typed: Typed) -> None:
    document = typed.json("show", study.cells()[0].run_key, "--out", runs)
    assert document["record"]["metrics"]["test_accuracy"] == 0.5
    assert [event["event"] for event in document["events"]] == ["train"] * 5 + ["validation"]


def test_show_of_runs_that_are_damaged_or_not_finished(
    runs: Path, study: Study, typed: Typed
) -> None:
    damaged, running = (cell.run_key for cell in study.cells()[3:5])
    assert "record.json" in typed.error("show", damaged, "--out", runs, code=3)
    printed = typed("show", running, "--out", runs)
    assert "state: running, process" in printed
    assert "no step has been logged yet" in printed


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("", "got ''"),
        ("zz", "got 'zz'"),
        ("../x", "got '../x'"),
        ("runs/" + "0" * 64, f"got 'runs/{'0' * 64}'"),
    ],
)
def test_show_of_no_run_or_of_several(runs: Path, start: str, says: str, typed: Typed) -> None:
    assert says in typed.error("show", start, "--out", runs)


def test_report_counts_what_is_missing_and_names_what_is_damaged(
    runs: Path, tmp_path: Path, typed: Typed
) -> None:
    words = ("report", "made-up", "--out", runs, "--to", tmp_path / "page", "--json")
    printed, said = typed.both(*words, "--format", "html", "--format", "markdown")
    document = json.loads(printed)
    expected = {"done": 2, "failed": 1, "damaged": 1, "missing": 2}
    assert document["summary"]["counts"].items() >= expected.items()
    assert {Path(name).name for name in document["files"]} == {"report.html", "report.md"}
    assert "record.json" in document["damage"][0]
    assert "record.json" in said


@pytest.fixture
def newer(study: Study, tmp_path: Path, typed: Typed) -> Path:
    """Runs that are done, with a page; then a newer qkvary writes the first of them again."""
    store, cells = Store(tmp_path / "runs"), study.cells()
    for cell in cells:
        fill(store, cell, 0.5)
    typed("report", "made-up", "--out", store.path, "--format", "html")
    directory = store.directory(cells[0].run_key)
    path = directory / RECORD_NAME
    record = path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2')
    path.write_bytes(record)
    files = {name: (directory / name).read_bytes() for name in read_manifest(directory).files}
    (directory / MANIFEST_NAME).write_bytes(describe(files).to_json())
    return store.path


@pytest.mark.parametrize("words", [["report", "made-up"], ["status"], ["study", "made-up"]])
def test_runs_of_a_newer_version_are_neither_damaged_nor_missing(
    words: list[str], newer: Path, typed: Typed
) -> None:
    page = newer / "reports" / "made-up" / "report.html"
    before = page.read_bytes()
    said = typed.error(*words, "--out", newer, code=3)
    assert "has schema_version 2, but this qkvary reads only 1; use a newer qkvary" in said
    assert "Traceback" not in said
    assert page.read_bytes() == before
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]


def test_a_study_that_ended_early_writes_no_page(
    study: Study, tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is, and however many runs it has looked at."""
    ended = RunSummary(
        **dict.fromkeys(("planned", "done", "failed", "diverged", "missing", "executed"), 0),
        seconds=0.1,
        exit_code=4,
        message="the disk is full",
    )
    monkeypatch.setattr("qkvary.api.study.StudyRunner.run", lambda _runner: ended)
    words = ("study", "made-up", "--out", tmp_path)
    document = typed.json(*words, code=4)
    assert (document["runs"]["message"], document["files"]) == ("the disk is full", [])
    assert document["summary"] is None
    assert "the disk is full" in typed.error(*words, code=4)
    assert not list(tmp_path.iterdir())


def test_a_plan_downloads_nothing_and_says_what_is_missing(
    study: Study, tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path))
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    setting = dataclasses.replace(
        study.settings[0],
        name="translation",
        task=TranslationTaskConfig(source="en", target="de"),
    )
    both = dataclasses.replace(study, settings=(*study.settings, setting))
    per_setting = len(study.cells()) // len(study.settings)
    plan = ("study", "made-up", "--dry-run", "--out", tmp_path / "none")
    for other, estimate in (
        (dataclasses.replace(study, settings=(setting,)), ""),
        (both, f"estimated time of the training steps of {len(study.cells())} runs on"),
    ):
        monkeypatch.setattr("qkvary.studies.catalog.load_study", lambda *_, other=other: other)
        printed = " ".join(typed(*plan).split())
        assert f"no estimate for {per_setting} runs: multi30k/train." in printed
        assert estimate in printed
        assert ("estimated time" in printed) == bool(estimate)
        assert "downloads are off (HF_HUB_OFFLINE): put" in printed
        found = typed.json(*plan)
        assert list(found["not_estimated"].values()) == [per_setting]
        assert (found["estimated_seconds"] is None) == (not estimate)


@pytest.mark.usefixtures("study")
def test_a_report_without_runs_writes_nothing(tmp_path: Path, typed: Typed) -> None:
    said = typed.error("report", "made-up", "--out", tmp_path / "none", "--json")
    assert "got none: run `qkvary study made-up --seeds 1-2 --out " in said
    assert not (tmp_path / "none").exists()
