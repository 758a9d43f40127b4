"""Files of others are read whole or refused in a sentence, and never unpickled."""

import os
from pathlib import Path

import pytest

from qkvary.storage.errors import DamagedError, UnsafeError, UsageError
from qkvary.storage.untrusted_files import read_file


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    assert read_file(tmp_path / "file") == b"some bytes"
    assert read_file(tmp_path / "file", limit=10) == b"some bytes"


def test_too_many_bytes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some bytes")
    with pytest.raises(DamagedError, match=r"expected at most 9 bytes in .*, got 10"):
        read_file(tmp_path / "file", limit=9)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UsageError, match="expected a regular file, got"):
            read_file(path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_file(tmp_path / "nowhere")


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x80\x02c", b"\x80\x04\x95"])
def test_a_pickle_is_refused(start: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(start + b"os\nsystem\n")
    with pytest.raises(UnsafeError, match="is a pickle, which can execute code"):
        read_file(tmp_path / "file")
