"""Stores the requests of ``qkvary train`` with their runs, for reports at any later time.

A run's own folder holds neither the name of the training nor its other runs. Each note is a study,
written once and never changed; notes that differ only in variants or seeds form one training.
Torch-free.

    RUNS/trainings/<name>-<first digits of its sha256>.json
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.storage.documents import DocumentFormat
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import now
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import encode
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.names import FOLDER_DIGITS, count, slug

FOLDER = "trainings"
FORMAT = DocumentFormat(name="a note of a training", version=1, key="format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training: the runs of one or more notes."""

    study: Study
    """All requested variants and seeds, in the order of the requests."""
    commands: tuple[str, ...]
    """The command lines."""
    notes: tuple[str, ...]
    """Names of the notes, without suffix."""


def note_training(store: Store, study: Study, command: str) -> None:
    """Write a note of a training, unless it exists.

    Args:
        store: The store of its runs.
        study: The requested runs.
        command: The command line.

    Raises:
        ResourceError: if the store cannot be written.
    """
    fields = to_dict(study)
    digest = hashlib.sha256(encode(fields).encode()).hexdigest()[:FOLDER_DIGITS]
    path = store.path / FOLDER / f"{slug(study.name)}-{digest}.json"
    if path.exists():
        return
    make_directory(path.parent)
    atomic_write_file(path, FORMAT.write({"command": command, "noted": now(), "study": fields}))


def list_trainings(store: Store) -> tuple[Training, ...]:
    """Return all trainings of a store, the oldest first.

    Raises:
        DamagedError: if a note is damaged.
        NewerFormatError: if a newer qkvary wrote it.
    """
    # Notes store whole seconds; within one second the modification times decide.
    paths = sorted((store.path / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [_read(path) for path in paths]
    trainings: list[Training] = []
    for _, training in sorted(found, key=lambda one: one[0]):
        for number, known in enumerate(trainings):
            joined = _join(known, training)
            if joined is not None:
                trainings[number] = joined
                break
        else:
            trainings.append(training)
    return tuple(trainings)


def find_training(store: Store, name: str) -> Training:
    """Return a training by name, the newest if several have it.

    Args:
        store: The store of its runs.
        name: Name of the study, or of a note for one of several trainings of that name.

    Raises:
        UsageError: if there is none.
        DamagedError: if a note is damaged.
    """
    trainings = list_trainings(store)
    for training in trainings:
        if name in training.notes:
            return training
    named = [training for training in trainings if training.study.name == name]
    # A training without a single step hides no older one.
    found = [training for training in named if _has_begun(store, training)] or named
    if found:
        return found[-1]
    known = ", ".join(dict.fromkeys(repr(training.study.name) for training in trainings))
    raise UsageError(
        f"expected a training of {store.path}, got {name!r}; "
        + (f"choices: {known}" if known else "it has none: run `qkvary train` first")
    )


def describe_older(store: Store, newest: Training) -> tuple[str, ...]:
    """Return the older trainings of the same name: the note by which each is found, and its runs.

    Raises:
        DamagedError: if a note is damaged.
    """
    others = (
        one
        for one in list_trainings(store)
        if one.study.name == newest.study.name and one.notes != newest.notes
    )
    return tuple(f"{one.notes[0]} ({_describe(one)})" for one in others if _has_begun(store, one))


def page_name(store: Store, study: Study) -> str:
    """Return the name of a training's page: its study's, or its note's if that is taken.

    Args:
        store: The store of its runs.
        study: Some or all of its runs.

    Raises:
        DamagedError: if a note is damaged.
    """
    named = [one for one in list_trainings(store) if one.study.name == study.name]
    begun = [one for one in named if _has_begun(store, one)] or named
    own = next((one for one in named if _keys(study) <= _keys(one.study)), None)
    if own is None or own is begun[0]:
        return study.name
    return own.notes[0]


def _read(path: Path) -> tuple[str, Training]:
    """Return a note's time and training."""

    def build(note: dict[str, Any]) -> tuple[str, Training]:
        study = from_dict(Study, note["study"])
        training = Training(study=study, commands=(str(note["command"]),), notes=(path.stem,))
        return str(note["noted"]), training

    return FORMAT.read(path.read_bytes(), path, build)


def _join(first: Training, second: Training) -> Training | None:
    """Return both trainings as one, or None if their runs are not runs of one study."""
    one, other = first.study, second.study
    if one.name != other.name:
        return None
    study = replace(
        one,
        variants=tuple(dict.fromkeys((*one.labels, *other.labels))),
        seeds=tuple(dict.fromkeys((*one.seeds, *other.seeds))),
    )
    if not (_keys(one) | _keys(other)) <= _keys(study):
        return None
    return Training(
        study=study,
        commands=tuple(dict.fromkeys((*first.commands, *second.commands))),
        notes=(*first.notes, *second.notes),
    )


def _keys(study: Study) -> set[str]:
    return {cell.run_key for cell in study.cells()}


def _has_begun(store: Store, training: Training) -> bool:
    return any(
        store.state(key) == "done" or store.curve(key) for key in sorted(_keys(training.study))
    )


def _describe(training: Training) -> str:
    (setting, *_), study = training.study.settings, training.study
    commands = ", ".join(f"`{command}`" for command in training.commands)
    return f"{count(setting.training.steps, 'step')}, {', '.join(study.variants)}: {commands}"
