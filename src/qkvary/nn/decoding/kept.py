"""Files that decoding keeps on a machine between runs: built kernels, and which is fastest.

They can be made again, so an unreadable file counts as missing and a failed write is ignored. Files
are renamed into place but not synced to disk, since readers verify them.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

from qkvary.storage.environment import cache_directory
from qkvary.storage.posix import fcntl


def kept_folder() -> Path | None:
    """Return ``decoding`` in the cache directory, or None where there is none."""
    folder = cache_directory()
    return None if folder is None else folder / "decoding"


def can_keep() -> bool:
    """Return whether the folder can be written, by trying."""
    folder = kept_folder()
    if folder is None:
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-"):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def one_at_a_time() -> Generator[None]:
    """Wait until other processes have left this block for the same folder, if it can be locked."""
    folder, descriptor = kept_folder(), None
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def keep(name: str, make: Callable[[Path], object]) -> Path | None:
    """Write a file with ``make``, move it into the folder and return its path, if possible."""
    folder = kept_folder()
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as room:
            made = Path(room) / name
            make(made)
            return made.replace(folder / name)
    except OSError:
        return None


def keep_text(name: str, text: str) -> Path | None:
    """Put a small file in the folder, if that can be written."""
    return keep(name, lambda path: path.write_text(text, "utf-8"))
