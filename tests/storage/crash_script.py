"""Saves checkpoints and keeps two: each system call of this program is made to fail.

Run as ``python crash_script.py FOLDER LAST``; resumes after the newest valid checkpoint.
"""

import sys
from pathlib import Path

from qkvary.storage import durable
from qkvary.storage.errors import QkvaryError
from tests.storage.byte_checkpoints import Stored, load_newest, save


def content(step: int) -> dict[str, bytes]:
    return {"weights.bin": bytes([step]) * 5003, "optimizer.bin": bytes([step + 100]) * 307}


def main(directory: Path, last: int) -> None:
    durable.make_directory(directory)
    newest = load_newest(directory)
    for step in range(newest.step + 1 if newest else 1, last + 1):
        save(directory, Stored(step=step, files=content(step), about={"note": "x"}))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except QkvaryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
