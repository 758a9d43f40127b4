"""``qkvary doctor``: the folder of runs, and its locks."""

import json
from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.storage import file_systems


def test_a_folder_of_this_machine_has_no_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--out", str(tmp_path / "runs"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"]["locks"] is True
    assert found["folder"]["locks_reach"] == "this machine"
    assert not [one for one in found["problems"] if str(tmp_path) in one or "lock" in one]


def test_locks_that_lock_nothing_are_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems.fcntl, "flock", lambda _file, _how: None)
    assert main(["doctor", "--out", str(tmp_path / "runs")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "has no file locks: two processes cannot share these runs" in printed
