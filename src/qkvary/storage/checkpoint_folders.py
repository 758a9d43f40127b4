"""Folders of numbered checkpoints, each a folder with a manifest. Torch-free."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from qkvary.storage.durable import (
    atomic_directory,
    clean_leftovers,
    make_directory,
    quarantine,
    remove_dir,
    write_new_file,
)
from qkvary.storage.errors import DamagedError, NoValidCheckpointError, UnsafeError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest

CHECKPOINTS_NAME = "checkpoints"
"""The folder of checkpoints inside the folder of a run."""
DEFAULT_KEEP = 2
"""Default number of checkpoints to keep: the newest, and one more in case it is damaged."""

Found = TypeVar("Found")

_STEP = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """The contents of a file to write."""

    size: int
    blocks: Iterable[bytes | memoryview]
    """The bytes in order, generated on demand."""


def step_folder(directory: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return directory / f"step-{step:012d}"


def stored_steps(directory: Path) -> tuple[int, ...]:
    """Return the steps of the checkpoints in ``directory``, newest first, without validation."""
    if not directory.is_dir():
        return ()
    matches = (_STEP.fullmatch(path.name) for path in directory.iterdir())
    return tuple(sorted((int(match[1]) for match in matches if match), reverse=True))


# ---- writing


def checkpoint_directory(directory: Path, step: int, size: int) -> AbstractContextManager[Path]:
    """Yield a temporary folder that becomes the checkpoint of a step when the block ends.

    Call ``write_checked`` for the files, ``write_manifest`` last, and ``keep_newest`` after the
    block. If it fails, older checkpoints remain.
    """
    make_directory(directory)
    clean_leftovers(directory)
    return atomic_directory(step_folder(directory, step), size)


def write_checked(folder: Path, files: Mapping[str, FileContents]) -> dict[str, FileEntry]:
    """Write files for ``checkpoint_directory``, verify them by reading, return their entries."""
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
    """Write the manifest of a checkpoint."""
    data = Manifest(files=files, about={**about, "step": step}).to_json()
    write_new_file(folder / MANIFEST_NAME, [data], len(data))


def keep_newest(directory: Path, keep: int = DEFAULT_KEEP) -> None:
    """Remove all checkpoints but the newest ``keep``, at least 1."""
    for step in stored_steps(directory)[keep:]:
        remove_dir(step_folder(directory, step))


# ---- reading


def step_manifest(directory: Path, step: int) -> Manifest:
    """Return the manifest of a checkpoint."""
    path = step_folder(directory, step)
    manifest = read_manifest(path)
    if manifest.about.get("step") != step:
        raise DamagedError(f"expected step {step} in {path}, got {manifest.about.get('step')}")
    return manifest


def find_newest(
    directory: Path,
    steps: Iterable[int],
    *,
    read: Callable[[int], Found],
    report: Callable[[str], None],
) -> Found | None:
    """Return the newest valid checkpoint, or None if there are none; ``steps`` are newest first.

    ``read`` raises ``DamagedError`` for a damaged checkpoint; ``report`` gets a message for each.

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


def keep_up_to(directory: Path, step: int, keep: int = DEFAULT_KEEP) -> None:
    """Keep the checkpoint of ``step`` and the ones before it, ``keep`` in total.

    Older ones, left by a killed process, are removed; newer ones, which could not be read, are
    quarantined.
    """
    steps = stored_steps(directory)
    position = steps.index(step)
    if position:
        quarantine(directory, [step_folder(directory, newer).name for newer in steps[:position]])
    for older in steps[position + keep :]:
        remove_dir(step_folder(directory, older))
