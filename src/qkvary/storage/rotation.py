"""A folder of numbered checkpoints, of which the newest are kept.

Each checkpoint is a folder with a manifest. Knows nothing of what is inside; torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qkvary.storage.durable import (
    atomic_write_dir,
    clean_leftovers,
    make_directory,
    remove_dir,
)
from qkvary.storage.errors import DamagedError, NewerFormatError, UnsafeError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import MANIFEST_NAME, Manifest, describe, read_manifest

KEEP = 2
"""How many checkpoints are kept: the newest, and one in case that it is damaged."""

_STEP = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One checkpoint, read and checked."""

    step: int
    """Its number."""
    files: Mapping[str, bytes]
    """Every file that its manifest lists."""
    about: Mapping[str, JsonValue]
    """What its writer noted in the manifest."""


def _folder(directory: Path, step: int) -> Path:
    return directory / f"step-{step:012d}"


def stored_steps(directory: Path) -> tuple[int, ...]:
    """Return the numbers of the checkpoints in ``directory``, newest first, unchecked."""
    if not directory.is_dir():
        return ()
    matches = (_STEP.fullmatch(path.name) for path in directory.iterdir())
    return tuple(sorted((int(match[1]) for match in matches if match), reverse=True))


def save_stored(directory: Path, stored: Stored) -> None:
    """Write one checkpoint, then remove all but the newest ``KEEP``.

    Nothing is removed before the new checkpoint is durable and was read back.

    Raises:
        ResourceError: if the disk is full, broken or not writable; the checkpoints before stay.
        DamagedError: if what was read back is not what was written.
    """
    make_directory(directory)
    clean_leftovers(directory)
    about: dict[str, JsonValue] = {**stored.about, "step": stored.step}
    manifest = describe(stored.files, about=about)
    path = _folder(directory, stored.step)
    atomic_write_dir(path, {**stored.files, MANIFEST_NAME: manifest.to_json()})
    read_manifest(path).read_all(path)
    _remove(directory, stored_steps(directory)[KEEP:])


def _remove(directory: Path, steps: Iterable[int]) -> None:
    for step in steps:
        remove_dir(_folder(directory, step))


def load_stored(directory: Path, step: int) -> Stored:
    """Return one checkpoint.

    Raises:
        DamagedError: if it is not exactly what was written.
        UnsafeError: if its manifest names a file outside of it.
    """
    path = _folder(directory, step)
    manifest: Manifest = read_manifest(path)
    if manifest.about.get("step") != step:
        raise DamagedError(f"{path} holds step {manifest.about.get('step')}")
    return Stored(step=step, files=manifest.read_all(path), about=manifest.about)


def load_newest(
    directory: Path,
    *,
    accept: Callable[[Stored], None],
    report: Callable[[str], None],
) -> Stored | None:
    """Return the newest sound checkpoint, or None where there is none at all.

    Damaged ones that are newer are reported and, once an older one was found sound, removed.

    Args:
        directory: Where the checkpoints are.
        accept: Raises ``DamagedError`` for a checkpoint that is of no use to the caller.
        report: Told, in a sentence, of each damaged checkpoint.

    Raises:
        DamagedError: if there are checkpoints and all of them are damaged; none is removed.
    """
    clean_leftovers(directory)
    steps = stored_steps(directory)
    problems: list[str] = []
    for position, step in enumerate(steps):
        try:
            stored = load_stored(directory, step)
            accept(stored)
        except NewerFormatError:
            raise
        except (DamagedError, UnsafeError) as error:
            problems.append(str(error))
            report(f"checkpoint of step {step} is damaged: {error}")
            continue
        # The damaged ones, and those that a killed process did not come to remove.
        _remove(directory, (*steps[:position], *steps[position + KEEP :]))
        return stored
    if problems:
        raise DamagedError(
            f"every checkpoint in {directory} is damaged: {problems[0]}; "
            "remove the folder to begin this run again"
        )
    return None
