"""Preparation survives a crash or disk fault at every persisting system call."""

import re
import shutil
from pathlib import Path

import pytest

from qkvary.data.prepared import open_prepared
from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.errors import UsageError
from tests.data import preparing_script
from tests.data.test_preparation import contents, write_texts
from tests.storage.test_crash_points import FAULTS, persistent, run, trace

PORTION = 90
SPREAD = 10
"""Of so many points the default run tries one; the others are slow."""
SCRIPT = Path(preparing_script.__file__)


def points(texts: Path, folder: Path) -> list[tuple[str, int]]:
    """Every call of an undisturbed run that persists something."""
    log, out = folder / "trace", folder / "traced"
    done = run(trace(log), SCRIPT, texts, out, PORTION, "")
    assert done.returncode == 0, done.stderr
    return list(persistent(log.read_text(), str(out)))


def check(texts: Path, out: Path, expected: dict[str, bytes]) -> None:
    """What a fault leaves is no set, or the whole one; another start ends it."""
    try:
        open_prepared(out)
        complete = True
    except UsageError:
        complete = False
    if complete:
        assert set(expected) <= {path.name for path in out.iterdir()}, "a set is there in part"
    preparing_script.main(texts, out, PORTION, "")
    left = [path.name for path in out.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]
    assert left == [], "something temporary is left"
    assert contents(out) == expected, "the set is another one"


def sweep(folder: Path, found: list[tuple[str, int]], fault: str) -> None:
    texts, out = folder / "texts", folder / "work"
    preparing_script.main(texts, folder / "whole", PORTION, "")
    expected = contents(folder / "whole")
    for call, number in found:
        shutil.rmtree(out, ignore_errors=True)
        inject = f"inject={call}:{fault}:when={number}"
        done = run(trace(folder / "log", "-e", inject), SCRIPT, texts, out, PORTION, "")
        if fault == "signal=KILL":
            assert done.returncode in (-9, 137), done.stderr
        elif done.returncode:
            assert done.returncode == 4, done.stderr
            assert "Traceback" not in done.stderr
            assert re.search(rf"cannot write {re.escape(str(out))}", done.stderr)
        check(texts, out, expected)


@pytest.mark.parametrize("fault", FAULTS)
def test_preparing_survives_a_fault_at_some_calls(tmp_path: Path, fault: str) -> None:
    found = points(write_texts(tmp_path / "texts", 8), tmp_path)
    assert {call for call, _ in found} >= {"write", "fsync", "rename", "mkdir", "openat"}
    assert len(found) > 60
    sweep(tmp_path, found[FAULTS.index(fault) :: SPREAD * len(FAULTS)], fault)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_preparing_survives_a_fault_at_every_call(tmp_path: Path, fault: str) -> None:
    sweep(tmp_path, points(write_texts(tmp_path / "texts", 8), tmp_path), fault)
