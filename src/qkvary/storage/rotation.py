"""A folder of numbered checkpoints, of which the newest are kept.

Each checkpoint is a folder with a manifest. Knows nothing of what is inside; torch-free.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkvary.storage.durable import (
    clean_leftovers,
    filling,
    make_directory,
    quarantine,
    remove_dir,
    write_new_file,
)
from qkvary.storage.errors import DamagedError, NoValidCheckpointError, UnsafeError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest

KEEP = 2
"""How many checkpoints are kept if nobody says: the newest, and one in case that it is damaged."""

Found = TypeVar("Found")
"""What a checkpoint is read as."""

_STEP = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The bytes of a file that is still to be written."""

    size: int
    """How many."""
    blocks: Iterable[bytes | memoryview]
    """The bytes, in order; made when they are needed."""


def step_folder(directory: Path, step: int) -> Path:
    """Return where the checkpoint of a step stands."""
    return directory / f"step-{step:012d}"


def stored_steps(directory: Path) -> tuple[int, ...]:
    """Return the numbers of the checkpoints in ``directory``, newest first, unchecked."""
    if not directory.is_dir():
        return ()
    matches = (_STEP.fullmatch(path.name) for path in directory.iterdir())
    return tuple(sorted((int(match[1]) for match in matches if match), reverse=True))


# ---- writing


def filling_step(directory: Path, step: int, size: int) -> AbstractContextManager[Path]:
    """Give out a folder for the files of one checkpoint; it is there when the block ends.

    Who fills it calls ``write_checked`` for the files, ``write_manifest`` last, and ``keep_newest``
    behind the block.

    Args:
        directory: Where the checkpoints are; made where it is not there.
        step: Number of the checkpoint.
        size: Bytes that it needs.

    Raises:
        ResourceError: if the disk is full, broken or not writable; the checkpoints before stay.
    """
    make_directory(directory)
    clean_leftovers(directory)
    return filling(step_folder(directory, step), size)


def write_checked(folder: Path, files: Mapping[str, Contents]) -> dict[str, FileEntry]:
    """Write files into a folder that ``filling_step`` gave out, and read them back.

    Returns:
        What the manifest has to say of them.

    Raises:
        ResourceError: if the disk is full, broken or not writable.
        DamagedError: if what was read back is not what was written.
    """
    entries: dict[str, FileEntry] = {}
    for name, contents in files.items():
        digest = hashlib.sha256()
        blocks = _watched(contents.blocks, digest.update)
        write_new_file(folder / name, blocks, contents.size)
        entries[name] = FileEntry(size=contents.size, sha256=digest.hexdigest())
    Manifest(files=entries, about={}).check(folder)
    return entries


def _watched(
    blocks: Iterable[bytes | memoryview], watch: Callable[[bytes | memoryview], None]
) -> Iterator[bytes | memoryview]:
    for block in blocks:
        watch(block)
        yield block


def write_manifest(
    folder: Path, step: int, files: Mapping[str, FileEntry], about: Mapping[str, JsonValue]
) -> None:
    """Write what makes the files of a folder a checkpoint.

    Raises:
        ResourceError: if the disk is full, broken or not writable.
    """
    data = Manifest(files=files, about={**about, "step": step}).to_json()
    write_new_file(folder / MANIFEST_NAME, [data], len(data))


def keep_newest(directory: Path, keep: int = KEEP) -> None:
    """Remove all checkpoints but the newest ``keep``, at least 1."""
    _remove(directory, stored_steps(directory)[keep:])


def _remove(directory: Path, steps: Iterable[int]) -> None:
    for step in steps:
        remove_dir(step_folder(directory, step))


# ---- reading


def step_manifest(directory: Path, step: int) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        DamagedError: if there is none, or it is that of another step.
        UnsafeError: if it names a file outside of the checkpoint.
    """
    path = step_folder(directory, step)
    manifest = read_manifest(path)
    if manifest.about.get("step") != step:
        raise DamagedError(f"{path} holds step {manifest.about.get('step')}")
    return manifest


def find_newest(
    directory: Path,
    steps: Iterable[int],
    *,
    read: Callable[[int], Found],
    report: Callable[[str], None],
) -> Found | None:
    """Return the first of some checkpoints that can be read, or None where there are none.

    Args:
        directory: Where the checkpoints are.
        steps: Their numbers, newest first.
        read: Reads one of them; raises ``DamagedError`` if it is damaged or of no use.
        report: Told, in a sentence, of each damaged checkpoint.

    Raises:
        NoValidCheckpointError: if all of them are damaged.
    """
    problems: list[str] = []
    for step in steps:
        try:
            return read(step)
        except (DamagedError, UnsafeError) as error:
            problems.append(str(error))
            report(f"checkpoint of step {step} is damaged: {error}")
    if problems:
        raise NoValidCheckpointError(f"every checkpoint in {directory} is damaged: {problems[0]}")
    return None


def keep_from(directory: Path, step: int, keep: int = KEEP) -> None:
    """Leave the checkpoint of ``step`` and those right before it, up to ``keep``.

    A killed process did not come to remove the older ones. Newer ones could not be read; whether
    they are damaged or the disk is, they are set aside.
    """
    steps = stored_steps(directory)
    position = steps.index(step)
    if position:
        quarantine(directory, [step_folder(directory, newer).name for newer in steps[:position]])
    _remove(directory, steps[position + keep :])
