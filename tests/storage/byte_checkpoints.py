"""Checkpoints of plain bytes, written and read as training states are: a folder of numbered steps.

What holds for them holds for every kind of checkpoint that goes through
``storage.checkpoint_folders``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qkvary.storage import checkpoint_folders
from qkvary.storage.jsonvalues import JsonValue


@dataclass(frozen=True)
class Stored:
    step: int
    files: Mapping[str, bytes]
    about: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def save(directory: Path, stored: Stored) -> None:
    contents = {
        name: checkpoint_folders.FileContents(size=len(data), blocks=[data])
        for name, data in stored.files.items()
    }
    size = sum(len(data) for data in stored.files.values())
    with checkpoint_folders.checkpoint_directory(directory, stored.step, size) as folder:
        entries = checkpoint_folders.write_checked(folder, contents)
        checkpoint_folders.write_manifest(folder, stored.step, entries, stored.about)
    checkpoint_folders.keep_newest(directory)


def load(directory: Path, step: int) -> Stored:
    manifest = checkpoint_folders.step_manifest(directory, step)
    files = manifest.read_all(checkpoint_folders.step_folder(directory, step))
    return Stored(step, files, manifest.about)


def load_newest(
    directory: Path,
    *,
    accept: Callable[[Stored], None] = lambda _stored: None,
    report: Callable[[str], None] = lambda _text: None,
) -> Stored | None:
    def read(step: int) -> Stored:
        stored = load(directory, step)
        accept(stored)
        return stored

    checkpoint_folders.clean_leftovers(directory)
    steps = checkpoint_folders.stored_steps(directory)
    found = checkpoint_folders.find_newest(directory, steps, read=read, report=report)
    if found is not None:
        checkpoint_folders.keep_up_to(directory, found.step)
    return found
