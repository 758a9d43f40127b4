"""Prepares a set in tiny groups: this program is killed, or its system calls fail.

Run as ``python preparing_script.py TEXTS FOLDER PORTION MUTANT``. With the mutant ``waits`` it says
when it has the lock, and goes on when its standard input ends.
"""

import sys
from pathlib import Path

from qkvary.data import preparation, shard_groups
from qkvary.data.preparation import PreparationSettings, Progress, prepare
from qkvary.data.sources import find_source
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.storage.errors import QkvaryError


def in_place(path: Path, data: bytes) -> None:
    """A mutant: what most programs do."""
    path.write_bytes(data)


def manifest_first(directory: shard_groups.PreparationDirectory) -> None:
    """A mutant: the manifest is written before its files."""
    directory.finish({"name": "x", "token_bytes": 2}, b"{}")


def main(texts: Path, folder: Path, group: int, mutant: str) -> None:
    def report(_progress: Progress) -> None:
        if mutant == "waits":
            sys.stdout.write("has the lock\n")
            sys.stdout.flush()
            sys.stdin.read()

    if mutant == "in_place":
        shard_groups.atomic_write_file = in_place  # type: ignore[assignment]
    elif mutant == "nothing_cleaned":
        preparation.clean_leftovers = lambda _folder: ()  # type: ignore[assignment]
    elif mutant == "record_first":
        shard_groups.PreparationDirectory.add = record_first(shard_groups.PreparationDirectory.add)  # type: ignore[method-assign]
    settings = PreparationSettings(
        workers=2 if mutant == "threads" else 1,
        group_bytes=(group, group),
        block_bytes=max(1, group // 3),
        on_progress=report,
    )
    prepare(
        find_source(texts),
        ByteTokenizer(has_separator=True),
        folder,
        tokenizer_name="bytes",
        settings=settings,
    )


def record_first(add: object) -> object:
    """A mutant: the record of a group is written before its shards."""

    def added(
        directory: shard_groups.PreparationDirectory, *given: object, **named: object
    ) -> object:
        written: list[tuple[Path, bytes]] = []
        original = shard_groups.atomic_write_file
        shard_groups.atomic_write_file = lambda path, data: written.append((path, data))
        try:
            result = add(directory, *given, **named)  # type: ignore[operator]
        finally:
            shard_groups.atomic_write_file = original
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
