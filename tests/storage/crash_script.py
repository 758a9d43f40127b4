"""Saves checkpoints of which two are kept: the program whose every system call is failed.

Run as ``python crash_script.py FOLDER LAST MUTANT``; goes on behind the newest sound checkpoint.
"""

import shutil
import sys
from pathlib import Path

from qkvary.storage import durable, rotation
from qkvary.storage.errors import QkvaryError
from qkvary.storage.rotation import Stored, load_newest, save_stored


def content(step: int) -> dict[str, bytes]:
    return {"weights.bin": bytes([step]) * 5003, "optimizer.bin": bytes([step + 100]) * 307}


def in_place(path: Path, files: dict[str, bytes]) -> None:
    """A mutant: what most programs do."""
    path.mkdir(exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)


def purge_first(directory: Path, stored: Stored) -> None:
    """A mutant: make room before the new checkpoint is there."""
    for step in rotation.stored_steps(directory):
        shutil.rmtree(directory / f"step-{step:012d}")
    save_stored(directory, stored)


def nothing_cleaned(_directory: Path) -> tuple[str, ...]:
    """A mutant: leftovers stay."""
    return ()


def main(directory: Path, mutant: str, last: int) -> None:
    save = save_stored
    if mutant == "in_place":
        rotation.atomic_write_dir = in_place  # type: ignore[assignment]
    elif mutant == "purge_first":
        save = purge_first
    elif mutant == "nothing_cleaned":
        rotation.clean_leftovers = nothing_cleaned
    durable.make_directory(directory)
    newest = load_newest(directory, accept=lambda _stored: None, report=lambda _text: None)
    for step in range(newest.step + 1 if newest else 1, last + 1):
        save(directory, Stored(step=step, files=content(step), about={"note": "x"}))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[3], int(sys.argv[2]))
    except QkvaryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
