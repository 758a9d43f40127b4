"""Checkpoints of plain bytes, written and read as training states are: a folder of numbered steps.

What holds for them holds for every kind of checkpoint that goes through ``storage.rotation``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qkvary.storage import rotation
from qkvary.storage.jsonvalues import JsonValue


@dataclass(frozen=True)
class Stored:
    step: int
    files: Mapping[str, bytes]
    about: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def save(directory: Path, stored: Stored) -> None:
    contents = {
        name: rotation.Contents(size=len(data), blocks=[data])
        for name, data in stored.files.items()
    }
    size = sum(len(data) for data in stored.files.values())
    with rotation.filling_step(directory, stored.step, size) as folder:
        entries = rotation.write_checked(folder, contents)
        rotation.write_manifest(folder, stored.step, entries, stored.about)
    rotation.keep_newest(directory)


def load(directory: Path, step: int) -> Stored:
    manifest = rotation.step_manifest(directory, step)
    files = manifest.read_all(rotation.step_folder(directory, step))
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

    rotation.clean_leftovers(directory)
    steps = rotation.stored_steps(directory)
    found = rotation.find_newest(directory, steps, read=read, report=report)
    if found is not None:
        rotation.keep_from(directory, found.step)
    return found
