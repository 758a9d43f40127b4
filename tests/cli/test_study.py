"""A study that is interrupted ends cleanly, its page too, and goes on from there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.studies.running.runner import RunSummary
from tests.contracts.test_commands import STUDY_FILE
from tests.forked import ForkedPython

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from qkvary.cli.main import run; run()"
LONG = STUDY_FILE.replace("steps=6", "steps=1_000_000").replace(
    "evaluate_every=3", "evaluate_every=500"
)


def test_the_page_of_a_stopped_study_no_longer_reloads_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "runs" / "reports" / "tiny-b-study-b" / "report.html"
    reloads = 'http-equiv="refresh"'

    said: list[str] = []

    def stop(*_: object, publish: Callable[[], str], **__: object) -> RunSummary:
        said.extend((publish(), publish()))
        assert reloads in page.read_text("utf-8")
        counts = {"planned": 4, "done": 0, "failed": 0, "diverged": 0, "missing": 4, "executed": 0}
        return RunSummary(**counts, seconds=1.0, exit_code=130)

    (tmp_path / "mine.py").write_text(STUDY_FILE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qkvary.api.study.run", stop)
    assert main(["study", "mine.py"]) == 130
    assert reloads not in page.read_text("utf-8")
    assert said == [f"results so far, refreshed as they come: {page.relative_to(tmp_path)}", ""]


def wait_for(path: Path, pattern: str) -> None:
    """Wait until a run has begun to log."""
    end = time.monotonic() + 120
    while not any(found.stat().st_size for found in path.glob(pattern)):
        assert time.monotonic() < end, f"nothing appeared in {path}"
        time.sleep(0.05)


def test_interrupted_study_says_so_and_keeps_its_steps(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG, "utf-8")
    process = ForkedPython(
        [sys.executable, "-c", PROGRAM, "study", "long.py", "--workers", "1"],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(ROOT / "src")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(tmp_path, "runs/*/*/metrics.jsonl")
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert printed == ""
    assert "interrupt again to stop at once" in said
    assert "the same command resumes where it stopped" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("runs/*/*/checkpoints/*/MANIFEST.json"))
    assert not list(tmp_path.glob("runs/*/*/record.json"))
