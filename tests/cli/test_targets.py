"""A command whose target cannot be written says what it expected and what exists."""

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qkvary.storage import durable
from qkvary.storage.durable import atomic_write_file, check_folder
from qkvary.storage.errors import TargetError
from tests.conftest import Typed


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_missing_permissions(
    here: Path, places: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    """Root may write everywhere, so the system's refusal is imitated."""
    (here / "theirs").mkdir(mode=0o755)

    def refuse(path: object, *_arguments: object, **_options: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(durable.os, "open", refuse)
    with pytest.raises(TargetError) as refused:
        atomic_write_file(here / "theirs" / "a.json", b"1")
    said = str(refused.value)
    assert said.startswith(f"expected a folder to write to, got {here / 'theirs'}, which belongs")
    assert said.endswith("make the folder writable, or choose another one")
    with pytest.raises(TargetError, match="expected a folder to write to"):
        check_folder(here / "theirs" / "new" / "x")
    said = typed.error("export", places / "rotary", "--out", "theirs/x")
    assert "expected a folder to write to, got " in said


def test_what_is_no_regular_file_is_written_through(here: Path, places: Path, typed: Typed) -> None:
    """A rename would put a file where the pipe or the link was."""
    (here / "link.json").symlink_to(here / "target.json")
    (here / "target.json").write_text("old, and longer than nothing" * 999)
    evaluate = ("evaluate", places / "rotary", "--data", places / "cats", "--out")
    document = typed.json(*evaluate, "link.json")
    assert document.pop("files") == ["link.json"]
    assert (here / "link.json").is_symlink()
    assert json.loads((here / "target.json").read_text()) == document

    os.mkfifo(here / "pipe.json")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((here / "pipe.json").read_text)
        typed(*evaluate, "pipe.json")
        assert json.loads(read.result()) == document
    assert (here / "pipe.json").is_fifo()
