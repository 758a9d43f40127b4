"""Finds trainings (earlier ``qkvary train`` commands) in a store, and their runs. Torch-free.

The folder of a run does not name the training that the run belongs to. So each command writes a
note with the definition of the study. Notes are never changed. Notes that differ only in variants
or seeds are treated as one training.

Execution settings change the last bits of the result of a step, so they are part of the identity of
a run. A run that differs from a requested run only in these settings is called *similar*. A similar
run can still be resumed with other settings; the log of the run then records the change.
"""

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import now
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import DocumentFormat, encode
from qkvary.studies.running.store import CONFIG_NAME, Store, config_bytes, read_identity
from qkvary.studies.study import Cell, Study
from qkvary.text.names import FOLDER_DIGITS, count, slug
from qkvary.training.config import ExecutionSettings

NOTES = "trainings"
# Version 1 may have the field ``minutes``, which earlier readers ignore.
NOTE = DocumentFormat(name="a note that describes a training", version=1, key="format")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedTraining:
    """A training, read from the notes of the ``qkvary train`` commands that requested its runs."""

    study: Study
    """The study of all requested variants and seeds, in the order of the requests."""
    commands: tuple[str, ...]
    notes: tuple[str, ...]
    """Names of the note files of the training, without suffix."""
    minutes: tuple[float, ...] = ()
    """Values of ``--minutes`` from which the number of steps was chosen."""
    namesakes: tuple["NotedTraining", ...] = ()
    """All trainings of the same name that have begun, the oldest first. ``find_training`` sets this
    field."""

    @property
    def page_name(self) -> str:
        """Name of the report page: the study's name or, if an older training has it, the note's."""
        is_oldest = all(one.notes == self.notes for one in self.namesakes[:1])
        return self.study.name if is_oldest else self.notes[0]

    def describe_older(self) -> tuple[str, ...]:
        """Describe the other trainings of this name: their notes, steps, variants and commands."""
        found: list[str] = []
        for one in self.namesakes:
            if one.notes != self.notes:
                steps = count(one.study.settings[0].training.steps, "step")
                commands = ", ".join(f"`{command}`" for command in one.commands)
                found.append(
                    f"{one.notes[0]} ({steps}, {', '.join(one.study.variants)}: {commands})"
                )
        return tuple(found)


def note_training(store: Store, study: Study, command: str, minutes: float | None = None) -> None:
    """Write the note of a training. An existing note is kept.

    The note includes ``minutes`` if the number of steps was chosen from a time limit.
    """
    written = to_dict(study)
    chosen = {} if minutes is None else {"minutes": float(minutes)}
    digest = hashlib.sha256(encode(written | chosen).encode()).hexdigest()[:FOLDER_DIGITS]
    path = store.path / NOTES / f"{slug(study.name)}-{digest}.json"
    if path.exists():
        return
    make_directory(path.parent)
    note = {"command": command, "noted": now(), "study": written, **chosen}
    atomic_write_file(path, NOTE.write(note))


def find_steps(store: Store, minutes: float, study_of: Callable[[int], Study]) -> int | None:
    """Return the number of steps that the study's group chose for the same ``minutes``.

    Returns None if the study begins a group.
    """
    for training in list_trainings(store):
        if minutes in training.minutes:
            noted, run = training.study, training.study.cells()[0].run
            study = study_of(run.training.steps).with_execution_settings(run.execution_settings)
            if _join_studies(noted, study) is not None:
                return run.training.steps
    return None


def list_trainings(store: Store) -> tuple[NotedTraining, ...]:
    """Return all trainings (groups of requested runs) in a store, the oldest first."""
    # Notes store whole seconds; within one second, modification times decide.
    paths = sorted(
        (store.path / NOTES).glob("[!.]*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    found = [_read_note(path) for path in paths]
    trainings: list[NotedTraining] = []
    for _, training in sorted(found, key=lambda one: one[0]):
        for number, known in enumerate(trainings):
            joined = _join(known, training)
            if joined is not None:
                trainings[number] = joined
                break
        else:
            trainings.append(training)
    return tuple(trainings)


def training_names(store: Store) -> tuple[str, ...]:
    """Return the names of the trainings in a store, the oldest first."""
    return tuple(dict.fromkeys(one.study.name for one in list_trainings(store)))


def find_training(store: Store, name: str) -> NotedTraining:
    """Return the training whose note has this name, or the newest one whose study has it."""
    trainings = list_trainings(store)
    named = [one for one in trainings if name in (*one.notes, one.study.name)]
    # A training that has not made a step does not hide an older one.
    found = [one for one in named if _has_begun(store, one)] or named
    if found:
        return _with_namesakes(store, found[-1], trainings)
    known = ", ".join(map(repr, training_names(store)))
    raise UsageError(
        f"expected a training in the store {store.path}, got {name!r}; "
        + (f"choices: {known}" if known else "the store has no trainings: run `qkvary train` first")
    )


def find_group(store: Store, study: Study) -> NotedTraining:
    """Return the training that requested all runs of a study."""
    trainings = list_trainings(store)
    own = next(one for one in trainings if _keys(study) <= _keys(one.study))
    return _with_namesakes(store, own, trainings)


def _with_namesakes(
    store: Store, training: NotedTraining, trainings: Sequence[NotedTraining]
) -> NotedTraining:
    named = (one for one in trainings if one.study.name == training.study.name)
    return replace(training, namesakes=tuple(one for one in named if _has_begun(store, one)))


def _read_note(path: Path) -> tuple[str, NotedTraining]:
    """Read a note. Return when it was written, and the training runs that it describes."""

    def build(note: dict[str, Any]) -> tuple[str, NotedTraining]:
        training = NotedTraining(
            study=from_dict(Study, note["study"]),
            commands=(str(note["command"]),),
            notes=(path.stem,),
            minutes=(float(note["minutes"]),) if "minutes" in note else (),
        )
        return str(note["noted"]), training

    return NOTE.read(path.read_bytes(), path, build)


def _join(first: NotedTraining, second: NotedTraining) -> NotedTraining | None:
    """Return both trainings as one, or None if their runs cannot belong to one study."""
    study = _join_studies(first.study, second.study)
    if study is None:
        return None
    return NotedTraining(
        study=study,
        commands=tuple(dict.fromkeys((*first.commands, *second.commands))),
        notes=(*first.notes, *second.notes),
        minutes=(*first.minutes, *second.minutes),
    )


def _join_studies(one: Study, other: Study) -> Study | None:
    if one.name != other.name:
        return None
    variants = tuple(dict.fromkeys((*one.labels, *other.labels)))
    study = replace(one, variants=variants, seeds=tuple(dict.fromkeys((*one.seeds, *other.seeds))))
    return study if (_keys(one) | _keys(other)) <= _keys(study) else None


def _keys(study: Study) -> set[str]:
    return set(study.runs())


def _has_begun(store: Store, training: NotedTraining) -> bool:
    return any(
        store.state(key) == "done" or store.log_events(key) for key in sorted(_keys(training.study))
    )


# ---- similar runs


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRun:
    """A stored run that equals a requested run or differs from it only in execution settings.

    Begun means that the run has a checkpoint, is being trained or is done.
    """

    cell: Cell
    """The requested run."""
    stored: ExecutionSettings
    step: int
    """Step of the newest checkpoint; 0 if there is none."""
    is_done: bool

    def differences(self, other: ExecutionSettings) -> str:
        """Return the stored settings that differ from ``other``, as command line options."""
        words: list[str] = []
        for name, (stored, _) in self.stored.differences(other).items():
            option = "--" + name.replace("_", "-")
            if stored is None or isinstance(stored, bool):
                words.append(option if stored else f"no {option}")
            else:
                words.append(f"{option} {stored}")
        return ", ".join(words)


def find_similar_runs(
    store: Store, cells: Mapping[str, Cell], *, with_done: bool
) -> list[BegunRun]:
    """Return stored runs to use for requested runs (cells) that have not begun.

    The stored runs differ from the cells only in execution settings. Finished runs are included
    only if ``with_done`` is true.

    Raises:
        UsageError: if the runs that have begun have no execution settings in common.
    """
    found: dict[ExecutionSettings, list[BegunRun]] = {}
    for run in _begun_runs(store, cells, with_done=with_done):
        found.setdefault(run.stored, []).append(run)
    shared = max(
        found.values(),
        key=lambda runs: (len(runs), *max((run.is_done, run.step) for run in runs)),
        default=[],
    )
    titles = {run.cell.title for run in shared}
    for run in chain.from_iterable(found.values()):
        if run.cell.title not in titles:
            first = shared[0]
            raise UsageError(
                "expected runs that began with the same settings, got "
                f"{first.cell.title} with {first.differences(run.stored)}, and {run.cell.title} "
                f"with {run.differences(first.stored)}: train them with separate commands, or "
                "begin new runs with --anew"
            )
    return [run for run in shared if run.stored != run.cell.run.execution_settings]


def _begun_runs(store: Store, cells: Mapping[str, Cell], *, with_done: bool) -> Generator[BegunRun]:
    """Yield the stored run of each cell (requested run) that has begun.

    For a cell that has not begun, yield stored runs that differ from the cell only in execution
    settings.
    """
    wanted: dict[str, Cell] = {}
    for key, cell in cells.items():
        state, step = store.state(key), store.newest_step(key)
        if step or state != "open":
            yield BegunRun(
                cell=cell, stored=cell.run.execution_settings, step=step, is_done=state == "done"
            )
        else:
            wanted[read_identity(config_bytes(cell.run.identity()))[0]] = cell
    for key in store.keys() if wanted else ():
        state, step = store.state(key), store.newest_step(key)
        if with_done if state == "done" else step:
            config = store.directory(key) / CONFIG_NAME
            identity, stored = read_identity(config.read_bytes() if config.exists() else b"")
            cell = wanted.get(identity)
            if cell is not None and stored is not None:
                yield BegunRun(cell=cell, stored=stored, step=step, is_done=state == "done")
