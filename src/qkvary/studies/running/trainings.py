"""What ``qkvary train`` was asked for, noted beside its runs: so a page can be made at any time.

A run's own folder says what the run is, but neither what it was called nor what else was planned.
Each note is a study, written once and never changed; those that ask for the same runs with other
variants or seeds are one training. Torch-free.

    RUNS/trainings/<name>-<first digits of its sha256>.json
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.arch.labels import format_label, parse_variant
from qkvary.storage.documents import Form
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import now
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import encode
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.names import FOLDER_DIGITS, slug

FOLDER = "trainings"
FORM = Form(name="a note of a training", version=1, key="format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Runs that belong together."""

    study: Study
    """All variants and seeds that were asked for, in the order in which they were."""
    commands: tuple[str, ...]
    """What was typed."""
    notes: tuple[str, ...]
    """Names of the notes, without their ending."""


def note_training(store: Store, study: Study, command: str) -> None:
    """Note what is to be trained, once.

    Args:
        store: Where its runs are.
        study: What is asked for.
        command: What was typed.

    Raises:
        ResourceError: if the store cannot be written.
    """
    fields = to_dict(study)
    digest = hashlib.sha256(encode(fields).encode()).hexdigest()[:FOLDER_DIGITS]
    path = store.path / FOLDER / f"{slug(study.name)}-{digest}.json"
    if path.exists():
        return
    make_directory(path.parent)
    atomic_write_file(path, FORM.write({"command": command, "noted": now(), "study": fields}))


def list_trainings(store: Store) -> tuple[Training, ...]:
    """Return all trainings of a store, the oldest first.

    Raises:
        DamagedError: if a note is not as it was written.
        NewerFormatError: if a newer qkvary wrote it.
    """
    # Notes have whole seconds: of those of one second the file written first is the older one.
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
    """Return the training of a name.

    Args:
        store: Where its runs are.
        name: Of the study, or of one of its notes where several trainings have one name.

    Raises:
        UsageError: if there is none, or more than one.
        DamagedError: if a note is not as it was written.
    """
    trainings = list_trainings(store)
    for training in trainings:
        if name in training.notes:
            return training
    named = [training for training in trainings if training.study.name == name]
    # What was refused before its first step is no reason to ask which one was meant.
    found = [training for training in named if _has_begun(store, training)] or named
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(f"{one.notes[0]} ({_tell_apart(one)})" for one in found)
        raise UsageError(f"{len(found)} trainings are called {name!r}: name one of {some}")
    known = ", ".join(dict.fromkeys(repr(training.study.name) for training in trainings))
    raise UsageError(
        f"expected a training of {store.path}, got {name!r}; "
        + (f"choices: {known}" if known else "it has none: `qkvary train` makes some")
    )


def page_name(store: Store, study: Study) -> str:
    """What the folder of a training's page is called: its name, if no older one has it.

    Args:
        store: Where its runs are.
        study: Some or all of what was asked for, under a name of ``qkvary train``.

    Raises:
        DamagedError: if a note is not as it was written.
    """
    named = [one for one in list_trainings(store) if one.study.name == study.name]
    begun = [one for one in named if _has_begun(store, one)] or named
    own = next((one for one in named if _keys(study) <= _keys(one.study)), None)
    if own is None or own is begun[0]:
        return study.name
    return own.notes[0]


def _read(path: Path) -> tuple[str, Training]:
    """A note, and when it was written."""

    def build(note: dict[str, Any]) -> tuple[str, Training]:
        study = from_dict(Study, note["study"])
        training = Training(study=study, commands=(str(note["command"]),), notes=(path.stem,))
        return str(note["noted"]), training

    return FORM.read(path.read_bytes(), path, build)


def _join(first: Training, second: Training) -> Training | None:
    """Both as one, if all runs of both are runs of one study."""
    one, other = first.study, second.study
    if one.name != other.name:
        return None
    labels = (format_label(parse_variant(label)) for label in (*one.variants, *other.variants))
    study = replace(
        one,
        variants=tuple(dict.fromkeys(labels)),
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


def _tell_apart(training: Training) -> str:
    (setting, *_), study = training.study.settings, training.study
    typed = ", ".join(f"`{command}`" for command in training.commands)
    return f"{setting.training.steps:,} steps, {', '.join(study.variants)}: {typed}"
