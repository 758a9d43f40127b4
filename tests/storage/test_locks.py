import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from qkvary.storage import durable
from qkvary.storage.durable import OwnerLock, is_held, read_note, read_owner
from qkvary.storage.errors import BusyError, ResourceError
from tests.forked import ForkedPython

HOLDER = """
import sys, time
from pathlib import Path
from qkvary.storage.errors import BusyError
from qkvary.storage.durable import OwnerLock
print("waiting", flush=True)
sys.stdin.readline()
try:
    lock = OwnerLock(Path(sys.argv[1]))
except BusyError as error:
    print(error)
    sys.exit(error.exit_code)
print("mine", flush=True)
time.sleep(600)
"""


def holders(path: Path, count: int) -> list["subprocess.Popen[str]"]:
    started = [
        ForkedPython(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in started:
        assert heard(process) == "waiting\n"
    return started


def heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def end(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Kill, wait and close the pipes."""
    for process in processes:
        with process:
            process.kill()


def race(path: Path, count: int) -> tuple[list[int], list[str]]:
    """Acquire the lock in all processes at once; return the owner and the errors of the others."""
    started = holders(path, count)
    for process in started:
        go(process)
    said: list[str] = []
    owners: list[int] = []
    for process in started:
        line = heard(process)
        if line == "mine\n":
            owners.append(process.pid)
        else:
            assert process.wait() == 6
            said.append(line)
    try:
        if len(owners) == 1:
            assert is_held(path)
            owner = read_owner(path)
            assert owner
            assert (owner.pid, owner.host) == (owners[0], socket.gethostname())
            killed = next(process for process in started if process.pid == owners[0])
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            assert not is_held(path)
            OwnerLock(path).release()
        return owners, said
    finally:
        end(started)


def test_one_of_eight_owns_and_the_others_name_it(tmp_path: Path) -> None:
    """One runs, seven end with 6 and name the owner; killing the owner frees it at once."""
    owners, said = race(tmp_path / "run.lock", 8)
    assert len(owners) == 1
    assert len(said) == 7
    for line in said:
        assert str(tmp_path) in line
        known = f"process {owners[0]} on {socket.gethostname()} since 2"
        assert known in line or "a starting process" in line


def test_a_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path / "run.lock")
    with pytest.raises(BusyError, match=f"in use by process {os.getpid()} on"):
        OwnerLock(tmp_path / "run.lock")
    lock.release()
    OwnerLock(tmp_path / "run.lock").release()


def test_a_process_that_only_looks_does_not_make_a_lock_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.lock"
    path.touch()
    with path.open("rb") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: look.close())
        OwnerLock(path).release()


def test_a_paused_owner_stays_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    (process,) = holders(path, 1)
    go(process)
    try:
        assert heard(process) == "mine\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        assert is_held(path)
        with pytest.raises(BusyError, match=f"process {process.pid} on"):
            OwnerLock(path)
    finally:
        end([process])


def test_a_leftover_lock_file_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    assert not is_held(path)
    assert read_owner(path) is None
    path.write_text("garbage")
    assert not is_held(path)
    assert read_owner(path) is None
    lock = OwnerLock(path)
    owner = read_owner(path)
    assert owner
    assert owner.pid == os.getpid()
    lock.release()
    assert read_owner(path) is None


def die_holding(path: Path, progress: str) -> None:
    """Acquire the lock in a process that dies with it."""
    child = os.fork()
    if not child:
        OwnerLock(path, progress=lambda: progress)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_owners_that_die_without_progress_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    for deaths in range(3):
        assert read_note(path).count_deaths("a") == deaths
        die_holding(path, "a")
    lock = OwnerLock(path, progress=lambda: "a")
    assert lock.deaths == 3
    assert lock.last_owner
    lock.release()
    die_holding(path, "b")
    assert read_note(path).count_deaths("b") == 1
    assert read_note(path).count_deaths("c") == 1, "it died after progress"
    lock = OwnerLock(path, progress=lambda: "b")
    assert lock.deaths == 1
    lock.release()
    assert read_note(path).count_deaths("b") == 0


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(durable.fcntl, "flock", refuse)
    with pytest.raises(ResourceError, match=r"cannot write .*run\.lock: No locks available"):
        OwnerLock(tmp_path / "run.lock")
