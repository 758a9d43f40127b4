"""A study that is interrupted ends cleanly, its page too, and goes on from there."""

from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.studies.running.runner import RunSummary, StudyRunner
from tests.contracts.test_commands import STUDY_FILE


def test_the_page_of_a_stopped_study_no_longer_reloads_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "runs" / "reports" / "tiny-b-study-b" / "report.html"
    reloads = 'http-equiv="refresh"'

    said: list[str] = []

    def stop(runner: StudyRunner) -> RunSummary:
        publish = runner._publish
        assert publish is not None
        said.extend((publish(), publish()))
        assert reloads in page.read_text("utf-8")
        counts = {"planned": 4, "done": 0, "failed": 0, "diverged": 0, "missing": 4, "executed": 0}
        return RunSummary(**counts, seconds=1.0, exit_code=130)

    (tmp_path / "mine.py").write_text(STUDY_FILE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StudyRunner, "run", stop)
    assert main(["study", "mine.py"]) == 130
    assert reloads not in page.read_text("utf-8")
    assert said == [f"results so far, updated during the study: {page.relative_to(tmp_path)}", ""]
