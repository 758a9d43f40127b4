import errno
import os
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qkvary.storage import durable
from qkvary.storage.durable import (
    TEMPORARY_PREFIX,
    AppendFile,
    atomic_directory,
    atomic_write_dir,
    atomic_write_file,
    clean_leftovers,
    make_directory,
    quarantine,
    remove_dir,
    remove_file,
    write_new_file,
    write_output,
)
from qkvary.storage.errors import ResourceError, TargetError, UnsafeError


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for data in (b"first", b"", bytes(300_001)):
        atomic_write_file(path, data)
        assert path.read_bytes() == data
        assert names(tmp_path) == ["a.txt"]


def test_bytes_are_flushed_before_their_name_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    rename = Path.rename

    def note_flush(descriptor: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def note_rename(path: Path, target: Path) -> Path:
        calls.append("name")
        return rename(path, target)

    monkeypatch.setattr(durable.os, "fsync", note_flush)
    monkeypatch.setattr(Path, "rename", note_rename)
    atomic_write_file(tmp_path / "a", b"1")
    assert calls == ["file", "name", "folder"]
    calls.clear()
    atomic_write_dir(tmp_path / "d", {"b": b"2", "c": b"3"})
    assert calls == ["file", "file", "folder", "name", "folder"]


def test_a_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_write_file(tmp_path / "a", b"x")
        atomic_write_dir(tmp_path / "d", {"b": b"y"})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "d" / "b").stat().st_mode) == 0o640


def test_a_folder_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "d"
    atomic_write_dir(path, {"a": b"1", "b": b"2"})
    atomic_write_dir(path, {"c": b"3"})
    assert names(tmp_path) == ["d"]
    assert names(path) == ["c"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeError, match="expected the name of a file inside"):
        atomic_write_dir(tmp_path / "d", {name: b""})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "make the folder writable"),
        (errno.EIO, "check the disk"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    (tmp_path / "a").write_bytes(b"before")
    monkeypatch.setattr(durable.os, "write", refuse)
    for write in (
        lambda: atomic_write_file(tmp_path / "a", b"after"),
        lambda: write_output(tmp_path / "a", b"after"),
        lambda: atomic_write_dir(tmp_path / "d", {"a": b"after"}),
        lambda: AppendFile(tmp_path / "a").append(b"after"),
    ):
        with pytest.raises(ResourceError, match=advice) as caught:
            write()
        assert caught.value.exit_code == 4
        assert os.strerror(number) in str(caught.value)
        assert "5 bytes" in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "a").read_bytes() == b"before"
    assert names(tmp_path) == ["a"]


def test_bytes_that_do_not_arrive_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable.os, "write", lambda _descriptor, view: len(view))
    with pytest.raises(ResourceError, match="expected a file of 5 bytes, got 0"):
        atomic_write_file(tmp_path / "a", b"after")
    assert names(tmp_path) == []


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TargetError, match=r"expected a folder at .*file, got a file"):
        make_directory(tmp_path / "file" / "d")


def test_removing(tmp_path: Path) -> None:
    atomic_write_dir(tmp_path / "d", {"a": b""})
    atomic_write_file(tmp_path / "f", b"")
    remove_dir(tmp_path / "d")
    remove_file(tmp_path / "f")
    remove_file(tmp_path / "f")
    assert names(tmp_path) == []
    with pytest.raises(ResourceError):
        remove_dir(tmp_path / "d")


@contextmanager
def running(code: str, path: Path) -> Generator["subprocess.Popen[bytes]"]:
    """A process whose code is given a path, until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(durable.__file__).parents[2])},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


WRITER = """
import os, sys, time
from pathlib import Path
from qkvary.storage import durable
durable._fill = lambda descriptor, data: (print("writing", flush=True), time.sleep(600))
durable.{function}
"""


@pytest.mark.parametrize(
    "function",
    [
        'atomic_write_file(Path(sys.argv[1]) / "a", b"x")',
        'atomic_write_dir(Path(sys.argv[1]) / "a", {"b": b"x"})',
    ],
)
def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path: Path, function: str
) -> None:
    with running(WRITER.format(function=function), tmp_path) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"writing\n"
        assert len(names(tmp_path)) == 1
        assert clean_leftovers(tmp_path) == ()
    left = names(tmp_path)
    assert [name.startswith(TEMPORARY_PREFIX) for name in left] == [True]
    assert list(clean_leftovers(tmp_path)) == left
    assert names(tmp_path) == []


def test_damaged_files_are_quarantined(tmp_path: Path) -> None:
    for data in (b"1", b"2"):
        atomic_write_file(tmp_path / "a", data)
        atomic_write_dir(tmp_path / "d", {"b": data})
        quarantine(tmp_path, ("a", "absent", "d"))
    assert names(tmp_path) == ["damaged-1", "damaged-2"]
    assert names(tmp_path / "damaged-1") == ["a", "d"]
    assert (tmp_path / "damaged-1" / "d" / "b").read_bytes() == b"1"
    assert (tmp_path / "damaged-2" / "a").read_bytes() == b"2"
    with pytest.raises(ResourceError, match=r"cannot write .*damaged-3"):
        quarantine(tmp_path, ("x" * 300,))


def test_a_writer_whose_file_was_taken_for_a_leftover_writes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the creation of the temporary file and its lock, another process may clean up."""
    flock, cleaned = durable.fcntl.flock, list[None]()

    def slow(descriptor: int, operation: int) -> None:
        if not cleaned:
            cleaned.extend(path.unlink() for path in tmp_path.iterdir())
        flock(descriptor, operation)

    monkeypatch.setattr(durable.fcntl, "flock", slow)
    atomic_write_file(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    assert names(tmp_path) == ["a"]


def test_a_folder_that_several_fill(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "d") as folder:
        assert not (tmp_path / "d").exists()
        write_new_file(folder / "a", [b"one ", memoryview(b"two")], 7)
        with pytest.raises(ResourceError, match="File exists"):
            write_new_file(folder / "a", [b"again"], 5)
    assert (tmp_path / "d" / "a").read_bytes() == b"one two"
    assert names(tmp_path) == ["d"]


def test_nothing_is_left_of_a_folder_that_was_not_filled(tmp_path: Path) -> None:
    atomic_write_dir(tmp_path / "d", {"a": b"before"})

    def interrupted() -> None:
        with atomic_directory(tmp_path / "d") as folder:
            write_new_file(folder / "a", [b"after"], 5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "d" / "a").read_bytes() == b"before"
    assert names(tmp_path) == ["d"]
