"""``qkvary doctor``: the folder of runs, and its locks."""

from pathlib import Path

import pytest

from qkvary.storage import file_systems
from tests.conftest import Typed


def test_a_folder_of_this_machine_has_no_problem(tmp_path: Path, typed: Typed) -> None:
    found = typed.json("doctor", "--out", tmp_path / "runs")
    assert found["folder"]["locks"] is True
    assert found["folder"]["locks_reach"] == "this machine"
    assert not [one for one in found["problems"] if str(tmp_path) in one or "lock" in one]


def test_locks_that_lock_nothing_are_a_problem(
    tmp_path: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems.fcntl, "flock", lambda _file, _how: None)
    printed = " ".join(typed("doctor", "--out", tmp_path / "runs").split())
    assert "has no file locks: two processes cannot share its runs" in printed
