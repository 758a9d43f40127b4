"""A study run from Python: its answer as a value."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import qkvary as qk
from qkvary.cli.main import main
from qkvary.storage.errors import QkvaryError
from qkvary.studies.running.runner import RunSummary, StudyRunner
from tests.studies.toy_study import toy_study

FILE = """
import dataclasses
from tests.studies.toy_study import toy_study

STUDY = dataclasses.replace(toy_study((0, 1), steps=2), name="mine")
"""


def test_a_study_is_run_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE, "utf-8")
    out = tmp_path / "runs"
    result = qk.study(path, out=out, seeds=(0, 1), workers=1)
    assert {run.state for run in result.value.runs} == {"done"}
    assert len(result.to_pandas("runs")) == 4
    assert "Does it run?" in result._repr_html_()
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    # The command finds the runs, and makes none.
    assert main(["study", str(path), "--out", str(out), "--dry-run", "--json"]) == 0
    assert '"done": 4' in capsys.readouterr().out


def test_runs_that_end_early_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: StudyRunner) -> RunSummary:
        counts = dict.fromkeys(("done", "failed", "diverged", "executed", "seconds"), 0)
        return RunSummary(planned=4, missing=1, exit_code=4, message="no", **counts)

    monkeypatch.setattr(StudyRunner, "run", stop)
    with pytest.raises(QkvaryError, match=r"^no\nstopped: 1 of 4 runs left") as ended:
        qk.study(toy_study((0,)), out=tmp_path)
    assert (ended.value.exit_code, list(tmp_path.iterdir())) == (4, [])


@pytest.mark.parametrize("trouble", ["failed", "diverged"])
def test_a_study_says_why_runs_failed_and_fails_if_none_is_done_or_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    real = StudyRunner.run
    given = {"out": tmp_path, "workers": 1}
    changes: dict[str, Any] = {trouble: 1, "reasons": {"expected a": 1}}

    def run(runner: StudyRunner) -> RunSummary:
        return dataclasses.replace(real(runner), **changes)

    monkeypatch.setattr(StudyRunner, "run", run)
    study = toy_study((0,), steps=2)
    assert [qk.study(study, strict=one, **given).exit_code for one in (False, True)] == [0, 1]
    changes["done"] = 0
    assert f"; 1 {trouble}" in (ended := qk.study(study, **given)).closing[0]
    assert (ended.exit_code, ended.closing[1]) == (1, "1 run: expected a")


def test_a_report_names_the_seeds_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE, "utf-8")
    with pytest.raises(QkvaryError, match=r"`qkvary study \S+ --seeds 0-1 --out \S+` first"):
        qk.report(path, out=tmp_path, seeds=(0, 1))
    qk.study(path, out=tmp_path, seeds=0, workers=1)
    made = qk.report(path, out=tmp_path, seeds=(0, 1), formats="json")
    assert made.value.commands == tuple(
        f"qkvary {verb} {path} --seeds 0-1 --out {tmp_path}" for verb in ("study", "report")
    )


def test_the_report_of_a_study_in_python_states_the_calls(tmp_path: Path) -> None:
    qk.study(toy_study((0,)), out=tmp_path, workers=1)
    made = qk.report(toy_study((0,)), out=tmp_path, seeds=(0, 1), formats="json")
    assert made.value.commands == tuple(
        f"qk.{verb}(STUDY, out='{tmp_path}', seeds=(0, 1))" for verb in ("study", "report")
    )
