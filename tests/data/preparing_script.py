"""Prepares a set in tiny groups: this program is killed, or its system calls fail.

Run as ``python preparing_script.py TEXTS FOLDER PORTION WAY``. By ``waits`` it says
when it has the lock, and goes on when its standard input ends.
"""

import sys
from pathlib import Path

from qkvary.data import preparation
from qkvary.data.preparation import prepare
from qkvary.data.sources import find_source
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.storage.errors import QkvaryError


def main(texts: Path, folder: Path, group: int, way: str) -> None:
    def report(_bytes: int, _total: int, _note: str) -> None:
        if way == "waits":
            sys.stdout.write("has the lock\n")
            sys.stdout.flush()
            sys.stdin.read()

    before = preparation.GROUP_BYTES, preparation.BLOCK_BYTES
    preparation.GROUP_BYTES, preparation.BLOCK_BYTES = (group, group), max(1, group // 3)
    try:
        prepare(
            find_source(str(texts)).read(),
            ByteTokenizer(has_separator=True),
            folder,
            tokenizer_name="bytes",
            workers=2 if way == "threads" else 1,
            on_progress=report,
        )
    finally:
        preparation.GROUP_BYTES, preparation.BLOCK_BYTES = before


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    except QkvaryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
