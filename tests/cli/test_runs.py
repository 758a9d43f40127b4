"""Status, show and report over a folder of runs that hold everything that can become of a run."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkvary.cli.main import main
from qkvary.storage.journal import Journal
from qkvary.storage.locks import OwnerLock
from qkvary.storage.manifest import MANIFEST_NAME, describe, read_manifest
from qkvary.studies.running.runner import RunSummary
from qkvary.studies.running.store import JOURNAL_NAME, LOCK_NAME, RECORD_NAME, Store
from qkvary.studies.study import Cell, Study
from qkvary.tasks.config import TranslationTaskConfig
from tests.studies.made_up import make_record, make_study

HOSTILE = "it \x1b[31mbroke\x1b[0m [red]badly[/red]"


def fill(store: Store, cell: Cell, outcome: float | str, **more: Any) -> None:
    claim = store.claim(cell.run_key, cell.run.identity())
    assert claim is not None
    journal = Journal(claim.directory / JOURNAL_NAME)
    for step in range(10, 60, 10):
        journal.append({"event": "train", "step": step, "loss": 1.0 / step, "seconds": 0.1 * step})
    journal.append({"event": "validation", "step": 50, "accuracy": 0.75, "seconds": 5.0})
    journal.close()
    claim.finish(make_record(cell, outcome, **more))


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


def status(capsys: pytest.CaptureFixture[str], runs: Path, *words: str) -> dict[str, Any]:
    assert main(["status", *words, "--out", str(runs), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_status_counts_every_run_once(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"done": 2, "failed": 1, "diverged": 0, "running": 1, "open": 1, "damaged": 1}
    assert status(capsys, runs, "made-up")["runs"] == {"total": 6, **expected}
    assert status(capsys, runs)["runs"] == {"total": 5, **expected, "open": 0}


def test_status_names_owners_and_problems(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = {run["state"]: run["note"] for run in status(capsys, runs, "made-up")["listed"]}
    assert "process" in notes["running"]
    assert notes["failed"] == HOSTILE
    assert "record.json" in notes["damaged"]
    problems = status(capsys, runs, "made-up", "--problems")["listed"]
    assert {run["state"] for run in problems} == {"running", "failed", "damaged"}


def test_messages_of_runs_are_text_only(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "made-up", "--out", str(runs), "--problems"]) == 0
    printed = capsys.readouterr().out
    assert "\\x1b[31mbroke" in printed
    assert "[red]badly[/red]" in printed
    assert "\x1b" not in printed


def test_show_by_the_start_of_a_key(
    runs: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    key = study.cells()[1].run_key
    assert main(["show", key[:10].upper(), "--out", str(runs)]) == 0
    printed = capsys.readouterr().out
    for text in (f"run {key}", "state: done", "Q-K=V", "train loss, steps 10 to 50", "first 0.100"):
        assert text in printed


def test_show_as_json_has_record_and_events(
    runs: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    key = study.cells()[0].run_key
    assert main(["show", key, "--out", str(runs), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["record"]["metrics"]["test_accuracy"] == 0.5
    assert [event["event"] for event in document["events"]] == ["train"] * 5 + ["validation"]


def test_show_of_a_run_that_is_not_finished(
    runs: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", study.cells()[4].run_key, "--out", str(runs)]) == 0
    printed = capsys.readouterr().out
    assert "state: running, process" in printed
    assert "no step has been logged yet" in printed


def test_show_of_a_damaged_run_is_an_error_of_its_own_kind(
    runs: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", study.cells()[3].run_key, "--out", str(runs)]) == 3
    assert "record.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "says"), [("", "5 runs start with ''"), ("zz", "no run in"), ("../x", "no run in")]
)
def test_show_of_no_run_or_of_several(
    runs: Path, start: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", start, "--out", str(runs)]) == 2
    assert says in capsys.readouterr().err


def test_report_counts_what_is_missing_and_names_what_is_damaged(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", "made-up", "--out", str(runs), "--to", str(tmp_path / "page")]
    assert main([*words, "--format", "html", "--format", "markdown", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["summary"]["counts"]["done"] == 2
    assert document["summary"]["counts"]["failed"] == 1
    assert document["summary"]["counts"]["damaged"] == 1
    assert document["summary"]["counts"]["missing"] == 2
    assert {Path(name).name for name in document["files"]} == {"report.html", "report.md"}
    assert "record.json" in document["damage"][0]
    assert "record.json" in printed.err


@pytest.fixture
def newer(study: Study, tmp_path: Path) -> Path:
    """Runs that are done, with a page; then a newer qkvary writes the first of them again."""
    store, cells = Store(tmp_path / "runs"), study.cells()
    for cell in cells:
        fill(store, cell, 0.5)
    assert main(["report", "made-up", "--out", str(store.path), "--format", "html"]) == 0
    directory = store.directory(cells[0].run_key)
    path = directory / RECORD_NAME
    record = path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 2')
    path.write_bytes(record)
    files = {name: (directory / name).read_bytes() for name in read_manifest(directory).files}
    (directory / MANIFEST_NAME).write_bytes(describe(files).to_json())
    return store.path


@pytest.mark.parametrize(
    ("words", "more"),
    [(["report", "made-up"], []), (["status"], []), (["study", "made-up"], ["--json"])],
)
def test_runs_of_a_newer_version_are_neither_damaged_nor_missing(
    words: list[str], more: list[str], newer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    page = newer / "reports" / "made-up" / "report.html"
    before = page.read_bytes()
    assert main([*words, "--out", str(newer), *more]) == 3
    printed, said = capsys.readouterr()
    assert "has schema_version 2, this qkvary reads 1; use a newer qkvary" in said
    assert "Traceback" not in said
    assert page.read_bytes() == before
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]
    if words[0] == "study" and more:
        assert json.loads(printed)["runs"]["missing"] == 6


def test_a_study_that_ended_early_writes_no_page(
    study: Study,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the reason is, and however many runs it has looked at."""
    ended = RunSummary(
        **dict.fromkeys(("planned", "done", "failed", "diverged", "missing", "executed"), 0),
        seconds=0.1,
        exit_code=4,
        message="the disk is full",
    )
    monkeypatch.setattr("qkvary.api.study.run", lambda *_words, **_more: ended)
    words = ["study", "made-up", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 4
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["runs"]["message"], document["files"]) == ("the disk is full", [])
    assert document["summary"] is None
    assert main(words) == 4
    assert "the disk is full" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_plan_downloads_nothing_and_says_what_is_missing(
    study: Study,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
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
    where = ("--out", str(tmp_path / "none"))
    for other, estimate in (
        (dataclasses.replace(study, settings=(setting,)), ""),
        (both, f"estimated time of {len(study.cells())} runs on this machine"),
    ):
        monkeypatch.setattr("qkvary.studies.catalog.load_study", lambda *_, other=other: other)
        assert main(["study", "made-up", "--dry-run", *where]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        missing = f"no estimate of {per_setting} runs: multi30k/train."
        assert missing in printed
        assert estimate in printed
        assert ("estimated time" in printed) == bool(estimate)
        assert "downloads are off (HF_HUB_OFFLINE): put" in printed
        assert main(["study", "made-up", "--dry-run", "--json", *where]) == 0
        found = json.loads(capsys.readouterr().out)
        assert list(found["not_estimated"].values()) == [per_setting]
        assert (found["estimated_seconds"] is None) == (not estimate)


@pytest.mark.parametrize("json_output", [False, True])
def test_a_report_without_runs_writes_nothing(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str], json_output: bool
) -> None:
    typed = ["report", "made-up", "--out", str(tmp_path / "none"), *["--json"] * json_output]
    assert main(typed) == 2
    assert "got none: run `qkvary study made-up` first" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
