"""Prepares a set in tiny portions: the program that is killed, and whose system calls are failed.

Run as ``python preparing_script.py TEXTS FOLDER PORTION MUTANT``. With the mutant ``waits`` it says
when it has the lock, and goes on when its standard input ends.
"""

import sys
from pathlib import Path

from qkvary.data import portions, preparation
from qkvary.data.preparation import Progress, Settings, prepare
from qkvary.data.sources import find_source
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.storage.errors import QkvaryError


def in_place(path: Path, data: bytes) -> None:
    """A mutant: what most programs do."""
    path.write_bytes(data)


def manifest_first(workplace: portions.Workplace) -> None:
    """A mutant: the manifest stands there before what it lists."""
    workplace.finish({"name": "x", "token_bytes": 2}, b"{}")


def main(texts: Path, folder: Path, portion: int, mutant: str) -> None:
    def report(_progress: Progress) -> None:
        if mutant == "waits":
            sys.stdout.write("has the lock\n")
            sys.stdout.flush()
            sys.stdin.read()

    if mutant == "in_place":
        portions.atomic_write_file = in_place  # type: ignore[assignment]
    elif mutant == "nothing_cleaned":
        preparation.clean_leftovers = lambda _folder: ()  # type: ignore[assignment]
    elif mutant == "record_first":
        portions.Workplace.add = record_first(portions.Workplace.add)  # type: ignore[method-assign]
    settings = Settings(
        workers=2 if mutant == "threads" else 1,
        portions=(portion, portion),
        block_bytes=max(1, portion // 3),
        report=report,
    )
    prepare(
        find_source(texts),
        ByteTokenizer(has_separator=True),
        folder,
        tokenizer_name="bytes",
        settings=settings,
    )


def record_first(add: object) -> object:
    """A mutant: the record of a portion is written before its shards."""

    def added(workplace: portions.Workplace, *given: object, **named: object) -> object:
        written: list[tuple[Path, bytes]] = []
        original = portions.atomic_write_file
        portions.atomic_write_file = lambda path, data: written.append((path, data))
        try:
            result = add(workplace, *given, **named)  # type: ignore[operator]
        finally:
            portions.atomic_write_file = original
        for path, data in reversed(written):
            original(path, data)
        return result

    return added


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    except QkvaryError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
