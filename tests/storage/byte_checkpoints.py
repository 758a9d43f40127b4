"""Checkpoints of plain bytes, written and read as training states are: a folder of numbered steps.

What holds for them holds for every kind of checkpoint that goes through
``storage.manifest``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qkvary.storage import manifest
from qkvary.storage.jsonvalues import JsonValue


@dataclass(frozen=True)
class Stored:
    step: int
    files: Mapping[str, bytes]
    about: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def save(directory: Path, stored: Stored) -> None:
    contents = {
        name: manifest.FileContents(size=len(data), blocks=[data])
        for name, data in stored.files.items()
    }
    size = sum(len(data) for data in stored.files.values())
    with manifest.checkpoint_directory(directory, stored.step, size) as folder:
        entries = manifest.write_checked(folder, contents)
        manifest.write_manifest(folder, stored.step, entries, stored.about)
    manifest.keep_newest(directory)


def load(directory: Path, step: int) -> Stored:
    found = manifest.step_manifest(directory, step)
    files = found.read_all(manifest.step_folder(directory, step))
    return Stored(step, files, found.about)


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

    manifest.clean_leftovers(directory)
    steps = manifest.stored_steps(directory)
    found = manifest.find_newest(directory, steps, read=read, report=report)
    if found is not None:
        manifest.quarantine_newer(directory, found.step)
    return found
