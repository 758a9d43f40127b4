"""The program dies, or the disk fails, at every single system call that persists something."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import qkvary
from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.manifest import stored_steps
from tests.storage import crash_script
from tests.storage.byte_checkpoints import Stored, load, load_newest, save
from tests.storage.crash_script import content

CALLS = ("write", "fsync", "rename", "mkdir", "unlink", "unlinkat", "rmdir", "openat", "flock")
SCRIPT = Path(crash_script.__file__)
SOURCE = Path(qkvary.__file__).parents[1]
ROOT = Path(__file__).resolve().parents[2]
LAST = 3


def run(
    strace: Sequence[str], script: Path, *arguments: object
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-S", str(script), *map(str, arguments)]
    return subprocess.run(
        [*strace, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}{os.pathsep}{sysconfig.get_path('purelib')}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
    )


def trace(log: Path, *options: str) -> tuple[str, ...]:
    calls = f"trace={','.join(CALLS)}"
    return ("strace", "-f", "-qq", "-o", str(log), "-e", calls, *options)


def check(directory: Path) -> None:
    """A restart after the fault finds a valid checkpoint, succeeds, and leaves no leftovers."""
    reported: list[str] = []
    newest = load_newest(directory, report=reported.append)
    assert reported == [], "a checkpoint stands there in part"
    assert newest is not None, "no checkpoint is left"
    assert newest.step >= 2, "a checkpoint that was durable is gone"
    assert dict(newest.files) == content(newest.step)
    crash_script.main(directory, LAST + 1)
    assert stored_steps(directory) == (LAST + 1, LAST)
    assert dict(load(directory, LAST).files) == content(LAST)
    left = [path.name for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
    assert left == [], "something temporary is left"


def prepared(tmp_path: Path) -> Path:
    """A folder with checkpoints 1 and 2, so that each later save also removes one."""
    directory = tmp_path / "prepared"
    if not directory.exists():
        directory.mkdir()
        for step in (1, 2):
            save(directory, Stored(step=step, files=content(step), about={"note": "x"}))
    return directory


def fail_at(tmp_path: Path, call: str, number: int, fault: str) -> None:
    directory = tmp_path / "work"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(prepared(tmp_path), directory)
    log = tmp_path / "log"
    inject = f"inject={call}:{fault}:when={number}"
    done = run(trace(log, "-e", inject), SCRIPT, directory, LAST)
    if fault == "signal=KILL":
        assert done.returncode in (-9, 137), done.stderr
    elif done.returncode:
        assert done.returncode == 4, done.stderr
        assert "Traceback" not in done.stderr
        assert str(directory) in done.stderr
        assert "cannot write" in done.stderr
    check(directory)


def work_points(tmp_path: Path) -> list[tuple[str, int]]:
    log = tmp_path / "trace"
    directory = tmp_path / "work"
    shutil.copytree(prepared(tmp_path), directory)
    done = run(trace(log), SCRIPT, directory, LAST)
    assert done.returncode == 0, done.stderr
    return list(persistent(log.read_text(), str(directory)))


def persistent(text: str, place: str) -> Iterator[tuple[str, int]]:
    """The calls of a trace that touch what persists, numbered among their kind."""
    counts: Counter[str] = Counter()
    inside = False
    for line in text.splitlines():
        match = re.match(r"\d+ +(\w+)\((.*)", line)
        if match:
            counts[match[1]] += 1
            inside = inside or place in match[2]
            if inside and (match[1] != "openat" or "O_CREAT" in match[2]):
                yield match[1], counts[match[1]]


FAULTS = ("signal=KILL", "error=ENOSPC", "error=EIO")


@pytest.mark.parametrize("fault", FAULTS)
def test_save_and_purge_survive_a_fault_at_every_call(tmp_path: Path, fault: str) -> None:
    """One checkpoint is saved and another removed: a kill at all points, one error at each."""
    found = work_points(tmp_path)
    assert {call for call, _ in found} >= {"write", "fsync", "rename", "mkdir", "unlinkat"}
    assert len(found) >= 20
    killed, *errors = FAULTS
    chosen = found if fault == killed else found[2 * errors.index(fault) :: 4]
    for call, number in chosen:
        fail_at(tmp_path, call, number, fault)
