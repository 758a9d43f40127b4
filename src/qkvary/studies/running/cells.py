"""Trains one run of a store: claims it, begins or resumes it, records it. Torch-free.

``qkvary train``, the workers of a study and all processes of torchrun call ``execute_cell``. Its
result is in the store. The caller supplies the function that trains, which needs torch.
"""

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from qkvary.arch.canonical import identity_dict
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, NoValidCheckpointError, QkvaryError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import DEFAULT_KEEP
from qkvary.studies.records import make_record
from qkvary.studies.running.store import Claim, RunResult, Store
from qkvary.studies.study import Cell
from qkvary.text.names import slug
from qkvary.training.progress import NO_CALLBACKS, Callbacks, Event
from qkvary.training.trackers import LogCopy, TrackedRun, TrackerName

RUNNER_GONE = threading.Event()
"""Set in a worker when its runner has ended."""
TERMINATED = threading.Event()
"""Set when a signal has ended a task of this process; a worker then takes no other task."""
COPIES_NAME = "logs"
"""The folder of the copied logs, inside the store."""
MAX_CRASHES = 3
"""A run that crashes more processes than this without progress counts as failed."""
Outcome = Literal["made", "elsewhere", "busy", "stopped"]
"""What became of a run: ``made`` by this process; ``elsewhere``: already done; ``busy``: another
process holds it; ``stopped``: it can be resumed."""
Log = Callable[[Mapping[str, JsonValue]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOptions:
    """The options of execution; results do not depend on them."""

    checkpoint_seconds: float = 30.0
    keep: int = DEFAULT_KEEP
    tracker: TrackerName | None = None
    project: str = ""
    """The name of the study in the tracker."""
    prompt: str | None = None
    """Text that the network continues at each validation, for the log; None for no text."""
    records_failures: bool = True
    """Whether a run that raises an error or crashes too often is recorded as failed. Otherwise the
    error is raised, and the run stays open with its checkpoints."""


DEFAULT_OPTIONS = CellOptions()


TrainFunction = Callable[..., RunResult | None]
"""Trains a cell in a folder that this process owns, with ``stop``, ``callbacks`` and ``options``;
returns None if ``stop`` ended the run after a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnd:
    """The end of a run in this process; its status is in the store."""

    outcome: Outcome
    seconds: float = 0.0
    """Seconds that this process spent on the run."""


def execute_cell(
    store: Store,
    cell: Cell,
    train: TrainFunction,
    *,
    stop: Callable[[], bool] = lambda: False,
    callbacks: Callbacks = NO_CALLBACKS,
    options: CellOptions = DEFAULT_OPTIONS,
    again: int | None = None,
    on_first: Callable[[Callable[[], JsonValue]], Any] | None = None,
) -> CellEnd:
    """Train a run if it is open, or if its record has the version ``again``, and record it.

    If several processes train together, all call this; ``on_first`` calls a function on the first
    of them and returns its result on all.
    """
    claims: list[Claim] = []
    config = cell.run.identity()
    key = config["run_key"]

    def claim() -> Outcome:
        try:
            found = store.claim(key, config, again=again)
        except BusyError:
            return "busy"
        claims.extend([found] if found else [])
        return "elsewhere" if found is None else "made"

    outcome: Outcome = claim() if on_first is None else on_first(claim)
    if outcome != "made":
        return CellEnd(outcome=outcome)
    callbacks.on_start(cell)
    attempt = partial(train, cell, store.directory(key), stop=stop, options=options)
    if claims:
        return _record(claims[0], cell, attempt, callbacks, options)
    return CellEnd(outcome="made" if attempt(callbacks=callbacks) else "stopped")


def _record(
    claim: Claim,
    cell: Cell,
    attempt: Callable[..., RunResult | None],
    callbacks: Callbacks,
    options: CellOptions,
) -> CellEnd:
    """Train a claimed run and record it, or release it."""
    started = time.perf_counter()

    def warn(text: str) -> None:
        callbacks.on_event(Event(step=0, steps=0, warning=text))

    for warning in claim.warnings:
        warn(warning)
    if options.records_failures and claim.deaths > MAX_CRASHES:
        warn("it crashed too often and counts as failed")
        reason = f"the last was {claim.lock.last_owner}" if claim.lock.last_owner else ""
        record_failure(claim, cell, describe_crashes(claim, reason))
        return CellEnd(outcome="made")
    copy = None if options.tracker is None else _copy_log(claim, cell, options, warn)
    if copy is not None:
        callbacks = replace(callbacks, on_log=_both(copy.log, callbacks.on_log))
    try:
        made = None
        try:
            made = _attempt(claim, cell, partial(attempt, callbacks=callbacks), warn, options)
        finally:
            if made is None:
                claim.release()
        if made is None:
            return CellEnd(outcome="stopped")
        claim.finish(made)
        return CellEnd(outcome="made", seconds=time.perf_counter() - started)
    finally:
        # After the record is written, so that a hanging tracker loses no run.
        if copy is not None:
            copy.finish()


def _attempt(
    claim: Claim,
    cell: Cell,
    attempt: Callable[[], RunResult | None],
    warn: Callable[[str], None],
    options: CellOptions,
) -> RunResult | None:
    """Train a run, from the start if all its checkpoints are damaged; return errors as results."""
    started = now()
    try:
        try:
            return attempt()
        except NoValidCheckpointError as error:
            if not options.records_failures:
                advice = f"move {claim.directory} away to start again"
                raise NoValidCheckpointError(f"{error}; {advice}") from error
            folder = claim.restart()
            warn(f"{error}; the run starts again, and the damaged files are in {folder}")
            return attempt()
    except QkvaryError:
        raise
    # An error of one run must not affect the others.
    except Exception as error:
        if not options.records_failures:
            raise
        traceback.print_exc()
        record = make_record(cell, status="failed", started=started, message=_reason(error))
        return RunResult(record=record)


def _both(first: Log, second: Log) -> Log:
    def log(entry: Mapping[str, JsonValue]) -> None:
        first(entry)
        second(entry)

    return log


def _copy_log(
    claim: Claim, cell: Cell, options: CellOptions, warn: Callable[[str], None]
) -> LogCopy:
    """Return the object that copies a run's log to the tracker."""
    run = TrackedRun(
        project=slug(options.project),
        name=f"{slug(cell.title)}-{claim.key[:8]}",
        config=identity_dict(cell.run),
        folder=claim.store.path / COPIES_NAME,
    )
    return LogCopy(options.tracker, run, warn)


def _reason(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def describe_crashes(claim: Claim, reason: str) -> str:
    """Describe the crashes of a run, and the reason of the last one if it is known."""
    return ", ".join(filter(None, (f"this run crashed {claim.deaths} workers", reason)))


def record_failure(claim: Claim, cell: Cell, message: str) -> None:
    """Record a claimed run as failed because it cannot be executed."""
    record = make_record(cell, status="failed", started=now(), message=message)
    claim.finish(RunResult(record=record))
