"""Folders in memory, for tests that kill processes: what they show does not depend on the disk."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def quick_folder() -> Iterator[Path]:
    """A fixture: an empty folder, in memory where the machine has such a place."""
    memory = Path("/dev") / "shm"
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="qkvary-", dir=place))
    yield path
    shutil.rmtree(path)
