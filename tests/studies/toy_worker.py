"""A ``train_cell`` that trains nothing, in milliseconds.

It makes a run as the real one does: steps whose state depends on all steps before, a log,
checkpoints, a record. The state is a digest instead of weights. The seed of a run says what goes
wrong with it. What is made is noted in ``executions.txt`` next to the store, one line for each
start and end.
"""

import hashlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from qkvary.storage.environment import now
from qkvary.storage.errors import ResourceError
from qkvary.storage.journal import Journal
from qkvary.storage.manifest import FileEntry
from qkvary.studies.records import make_record
from qkvary.studies.running.cells import DEFAULT_OPTIONS, CellOptions
from qkvary.studies.running.store import RunResult
from qkvary.studies.study import Cell
from qkvary.tasks.example_files import maps_to_bytes
from qkvary.tasks.examples import AttentionExample
from qkvary.training.progress import NO_CALLBACKS, Callbacks, Event
from qkvary.training.run_log import open_log
from tests.storage import byte_checkpoints

CHECKPOINT_EVERY = 4

RAISES, DIVERGES, CRASHES, DISK_FULL, TALKS = 1001, 1002, 1003, 1004, 1005
"""Seeds of runs that do not end well."""


def note(directory: Path, what: str) -> None:
    """Append to the list of executions: one system call, so that lines never mix."""
    path = directory.parents[2] / "executions.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what} {directory.name} {os.getpid()}\n".encode())
    os.close(descriptor)


def misbehave(seed: int, step: int) -> None:
    if step != 3:
        return
    if seed == RAISES:
        raise RuntimeError("the run went wrong")
    if seed == CRASHES:
        sys.stderr.write("last words of the worker\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    if seed == DISK_FULL:
        raise ResourceError("cannot write there: the disk is full; free some space")
    if seed == TALKS:
        os.write(1, b"a library prints to standard output\n")


def resumed(directory: Path, say: Any) -> tuple[Journal, int, str]:
    path = directory / "metrics.jsonl"
    stored = byte_checkpoints.load_newest(
        directory / "checkpoints", accept=lambda _stored: None, report=say
    )
    if stored is None:
        return Journal(path, b""), 0, directory.name
    mark = FileEntry(**cast("dict[str, Any]", stored.about["journal"]))
    journal, damage = open_log(path, mark, stored.step)
    if damage:
        say(damage)
    journal.append({"event": "resumed", "step": stored.step})
    return journal, stored.step, stored.files["state.txt"].decode()


def train_cell(
    cell: Cell,
    directory: Path,
    /,
    *,
    stop: Callable[[], bool] = lambda: False,
    callbacks: Callbacks = NO_CALLBACKS,
    options: CellOptions = DEFAULT_OPTIONS,
) -> RunResult | None:
    note(directory, "start")
    steps = cell.run.training.steps
    journal, step, state = resumed(
        directory,
        lambda text: callbacks.on_event(Event(step=0, steps=steps, warning=text)),
    )
    try:
        while step < steps:
            if stop():
                save(directory, journal, step, state)
                return None
            misbehave(cell.seed, step)
            time.sleep(float(os.environ.get("TOY_STEP_SECONDS", "0")))
            state = hashlib.sha256(f"{state} {step} {cell.seed}".encode()).hexdigest()
            step += 1
            journal.append({"event": "train", "step": step, "loss": number(state)})
            callbacks.on_event(Event(step=step, steps=steps, loss=number(state)))
            if step % CHECKPOINT_EVERY == 0:
                save(directory, journal, step, state)
        journal.mark()
    finally:
        journal.close()
    note(directory, "end")
    return finished(cell, state)


def number(state: str) -> float:
    return int(state[:12], 16) / 16**12


def save(directory: Path, journal: Journal, step: int, state: str) -> None:
    mark = journal.mark()
    about = {"journal": {"size": mark.size, "sha256": mark.sha256}}
    stored = byte_checkpoints.Stored(step=step, files={"state.txt": state.encode()}, about=about)
    byte_checkpoints.save(directory / "checkpoints", stored)


def finished(cell: Cell, state: str) -> RunResult:
    diverged = cell.seed == DIVERGES
    record = make_record(
        cell,
        status="diverged" if diverged else "done",
        started=now(),
        message="the loss is nan at step 3" if diverged else "",
        metrics={"test_accuracy": math.nan if diverged else number(state), "steps_to_solve": None},
        state_sha256=state,
    )
    maps = np.full((1, 1, 2, 2), number(state), dtype=np.float32)
    example = AttentionExample(maps=maps, tokens=("a", "b"), targets=(1, None))
    return RunResult(record=record, attention=maps_to_bytes(example))


def executions(root: Path) -> list[list[str]]:
    """The recorded executions: ``start`` or ``end``, run key, process."""
    path = root / "executions.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
