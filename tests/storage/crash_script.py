"""Saves checkpoints and keeps two: each system call of this program is made to fail.

Run as ``python crash_script.py FOLDER LAST MUTANT``; resumes after the newest valid checkpoint.
"""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkvary.storage import checkpoint_folders, durable
from qkvary.storage.errors import QkvaryError
from tests.storage.byte_checkpoints import Stored, load_newest, save


def content(step: int) -> dict[str, bytes]:
    return {"weights.bin": bytes([step]) * 5003, "optimizer.bin": bytes([step + 100]) * 307}


@contextmanager
def in_place(path: Path, _size: int) -> Iterator[Path]:
    """A mutant: what most programs do."""
    path.mkdir(exist_ok=True)
    yield path


def purge_first(directory: Path, stored: Stored) -> None:
    """A mutant: remove old checkpoints before the new one exists."""
    for step in checkpoint_folders.stored_steps(directory):
        shutil.rmtree(directory / f"step-{step:012d}")
    save(directory, stored)


def nothing_cleaned(_directory: Path) -> tuple[str, ...]:
    """A mutant: leftovers stay."""
    return ()


def main(directory: Path, mutant: str, last: int) -> None:
    write = save
    if mutant == "in_place":
        checkpoint_folders.atomic_directory = in_place
    elif mutant == "purge_first":
        write = purge_first
    elif mutant == "nothing_cleaned":
        checkpoint_folders.clean_leftovers = nothing_cleaned
    durable.make_directory(directory)
    newest = load_newest(directory)
    for step in range(newest.step + 1 if newest else 1, last + 1):
        write(directory, Stored(step=step, files=content(step), about={"note": "x"}))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[3], int(sys.argv[2]))
    except QkvaryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
