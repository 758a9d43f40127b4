"""Stores the requests of ``qkvary train``, and finds runs like those of a request.

The folder of a run holds neither the name of the training nor its other runs. Each note is a study,
written once and never changed; notes that differ only in variants or seeds form one training.

Execution settings change the last bits of a step, so they are part of the identity of a run. A run
that differs only in these settings is *similar* and can still be resumed; its log then records the
change. Torch-free.

    RUNS/trainings/<name>-<first digits of its sha256>.json
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.storage.checkpoint_folders import stored_steps
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import now
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import DocumentFormat, decode, encode
from qkvary.studies.running.store import CHECKPOINTS_NAME, CONFIG_NAME, Store
from qkvary.studies.study import Cell, Study
from qkvary.text.names import FOLDER_DIGITS, count, slug
from qkvary.training.config import ExecutionSettings, RunConfig

FOLDER = "trainings"
FORMAT = DocumentFormat(name="a note of a training", version=1, key="format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training: the runs of one or more notes."""

    study: Study
    """All requested variants and seeds, in the order of the requests."""
    commands: tuple[str, ...]
    notes: tuple[str, ...]
    """Names of the training's notes, without suffix."""


def note_training(store: Store, study: Study, command: str) -> None:
    """Write a note of a training, unless it exists."""
    fields = to_dict(study)
    digest = hashlib.sha256(encode(fields).encode()).hexdigest()[:FOLDER_DIGITS]
    path = store.path / FOLDER / f"{slug(study.name)}-{digest}.json"
    if path.exists():
        return
    make_directory(path.parent)
    atomic_write_file(path, FORMAT.write({"command": command, "noted": now(), "study": fields}))


def list_trainings(store: Store) -> tuple[Training, ...]:
    """Return all trainings of a store, the oldest first."""
    # Notes store whole seconds; within one second, modification times decide.
    paths = sorted((store.path / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [_read_note(path) for path in paths]
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
    """Return the training of a note, or the newest of a study, by name."""
    trainings = list_trainings(store)
    for training in trainings:
        if name in training.notes:
            return training
    named = [training for training in trainings if training.study.name == name]
    # A training that has not made a step does not hide an older one.
    found = [training for training in named if _has_begun(store, training)] or named
    if found:
        return found[-1]
    known = ", ".join(dict.fromkeys(repr(training.study.name) for training in trainings))
    raise UsageError(
        f"expected a training of {store.path}, got {name!r}; "
        + (f"choices: {known}" if known else "it has none: run `qkvary train` first")
    )


def describe_older(store: Store, newest: Training) -> tuple[str, ...]:
    """Return the older trainings of the same name: the note that finds each, and its runs."""
    found: list[str] = []
    for one in list_trainings(store):
        study = one.study
        if study.name == newest.study.name and one.notes != newest.notes and _has_begun(store, one):
            steps = count(study.settings[0].training.steps, "step")
            commands = ", ".join(f"`{command}`" for command in one.commands)
            found.append(f"{one.notes[0]} ({steps}, {', '.join(study.variants)}: {commands})")
    return tuple(found)


def page_name(store: Store, study: Study) -> str:
    """Return the name of a training's page: its study's name, or its note's if that is taken."""
    named = [one for one in list_trainings(store) if one.study.name == study.name]
    begun = [one for one in named if _has_begun(store, one)] or named
    own = next((one for one in named if _keys(study) <= _keys(one.study)), None)
    if own is None or own is begun[0]:
        return study.name
    return own.notes[0]


def _read_note(path: Path) -> tuple[str, Training]:
    """Return a note's time and training."""

    def build(note: dict[str, Any]) -> tuple[str, Training]:
        study = from_dict(Study, note["study"])
        training = Training(study=study, commands=(str(note["command"]),), notes=(path.stem,))
        return str(note["noted"]), training

    return FORMAT.read(path.read_bytes(), path, build)


def _join(first: Training, second: Training) -> Training | None:
    """Return both trainings as one, or None if their runs cannot belong to one study."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarRun:
    """A stored run that differs from a requested one only in its execution settings."""

    cell: Cell
    execution: ExecutionSettings
    step: int
    """Step of the newest checkpoint; 0 if the run is done and has none."""

    @property
    def differences(self) -> str:
        """The settings in which the stored run differs, as command line options."""
        changed = self.execution.differences(self.cell.run.execution)
        return ", ".join(_option(name, stored) for name, (stored, _) in changed.items())


def find_similar_run(
    store: Store, study: Study, *, state: Literal["open", "done"] = "open"
) -> SimilarRun | None:
    """Return the most advanced similar run in a state; None if a requested run has begun."""
    keys = store.keys()
    if not keys:
        return None
    cells = study.cells()
    requested = [cell.run_key for cell in cells]
    if any(store.state(key) != "open" or _newest(store, key) is not None for key in requested):
        return None
    wanted = {_identity_without_execution(cell.run.identity()): cell for cell in cells}
    found: list[SimilarRun] = []
    for key in keys:
        step = _newest(store, key)
        if store.state(key) != state or (step is None and state == "open"):
            continue
        identity, execution = _read(store, key)
        if execution is not None and (cell := wanted.get(identity)) is not None:
            found.append(SimilarRun(cell=cell, execution=execution, step=step or 0))
    return max(found, key=lambda one: one.step, default=None)


def with_execution(study: Study, execution: ExecutionSettings) -> Study:
    """Return the study with other execution settings."""
    settings = tuple(
        replace(setting, training=replace(setting.training, execution=execution.config))
        for setting in study.settings
    )
    return replace(study, settings=settings, device=execution.device)


def _newest(store: Store, key: str) -> int | None:
    return max(stored_steps(store.directory(key) / CHECKPOINTS_NAME), default=None)


def _read(store: Store, key: str) -> tuple[str, ExecutionSettings | None]:
    """Return identity and execution settings of a stored run; None if they cannot be read."""
    try:
        data = (store.directory(key) / CONFIG_NAME).read_bytes()
        identity = cast("dict[str, Any]", decode(data))
        execution = from_dict(RunConfig, identity["run"]).execution
        return _identity_without_execution(identity), execution
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return "", None


def _identity_without_execution(identity: dict[str, Any]) -> str:
    run: dict[str, Any] = {**identity["run"], "device": None}
    run["training"] = {**run["training"], "execution": None}
    run["task"] = {**run["task"], "data": None}
    named = (run, identity["data_fingerprint"], identity["numerics_version"])
    return json.dumps(named, sort_keys=True)


def _option(name: str, value: object) -> str:
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"no {option}" if value is None else f"{option} {value}"
