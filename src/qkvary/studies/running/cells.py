"""Executes one run of a store. Torch-free.

``qkvary train``, the workers of a study and all processes of torchrun call ``execute_cell``. It
claims the run, begins or resumes it, and writes the result to the store. Only the function that
trains needs torch, and the caller supplies this function.
"""

import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from qkvary.arch.canonical import to_dict
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, NoValidCheckpointError, QkvaryError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import CHECKPOINT_SECONDS, DEFAULT_KEEP
from qkvary.studies.records import make_record
from qkvary.studies.running.store import Claim, RunResult, Store
from qkvary.studies.study import Cell
from qkvary.text.names import slug
from qkvary.training.progress import NO_CALLBACKS, Callbacks, Event, ignore
from qkvary.training.trackers import LogCopy, TrackedRun, TrackerName

RUNNER_GONE = threading.Event()
"""Event that is set in a worker process when the runner of the worker has ended."""
COPIES_NAME = "logs"
"""The folder of the copied logs, inside the store."""
MAX_CRASHES = 3
"""A run that crashes more processes than this without progress counts as failed."""
CellOutcome = Literal["made", "done_before", "busy", "stopped"]
"""The outcome of a run: ``made`` (by this process), ``done_before`` (by an earlier call or another
process), ``busy`` (another process holds the run) or ``stopped`` (the run can be resumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOptions:
    """The options of execution; results do not depend on them."""

    checkpoint_seconds: float = CHECKPOINT_SECONDS
    keep: int = DEFAULT_KEEP
    tracker: TrackerName | None = None
    project: str = ""
    """The name of the study in the tracker."""
    sample: str | None = None
    """A text that the network continues at each validation, for the log. None to log no sample."""
    records_failures: bool = True
    """Whether a run that raises an error or crashes too often is recorded as failed. Otherwise the
    error is raised, and the run stays open with its checkpoints."""


DEFAULT_OPTIONS = CellOptions()
OnFirst = Callable[[Callable[[], JsonValue]], Any]
"""A function that calls another one on the first of several processes, and returns the result on
all of them."""


class TrainFunction(Protocol):
    """A function that trains a cell in the cell's folder, which the first process has claimed."""

    def __call__(
        self,
        cell: Cell,
        directory: Path,
        /,
        *,
        stop: Callable[[], bool],
        callbacks: Callbacks,
        options: CellOptions,
    ) -> RunResult | None:
        """Return the result, or None if ``stop`` ended the run after a checkpoint."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnd:
    """The end of a run in this process. The store has the status of the run."""

    outcome: CellOutcome
    seconds: float = 0.0
    """Seconds that this process spent on the run."""


def execute_cell(
    store: Store,
    cell: Cell,
    train_cell: TrainFunction,
    *,
    stop: Callable[[], bool] = lambda: False,
    callbacks: Callbacks = NO_CALLBACKS,
    options: CellOptions = DEFAULT_OPTIONS,
    again: int | None = None,
    crash: str = "",
    on_first: OnFirst = lambda work: work(),
    on_claim: Callable[[Cell], None] = ignore,
) -> CellEnd:
    """Train and record a run, unless it is done or another process holds it.

    To train a finished run again, pass the version of its record as ``again``. ``crash`` describes
    the last crash of the run, if it is known. If several processes train one run together, all call
    this function, and only the first claims and records the run. ``on_claim`` is called before the
    run starts or resumes.
    """
    obstacle, claim = _claim(store, cell, again, on_first)
    if obstacle is not None:
        return CellEnd(outcome=obstacle)
    began, started = time.perf_counter(), now()
    directory, result = store.directory(cell.run_key), None
    with ExitStack() as stack:
        if claim is not None:
            callbacks = stack.enter_context(_hold(claim, cell, callbacks, options))
        on_claim(cell)

        def attempt() -> RunResult | None:
            return train_cell(cell, directory, stop=stop, callbacks=callbacks, options=options)

        if claim is not None:
            for warning in claim.warnings:
                _warn(callbacks, warning)
            if options.records_failures and claim.deaths > MAX_CRASHES:
                last = f"the last: {crash}" if crash else f"the last was {claim.lock.last_owner}"
                message = f"this run crashed {claim.deaths} workers, {last}"
                result = _failure(cell, started, message)
        try:
            try:
                result = result or attempt()
            except NoValidCheckpointError as error:
                if claim is None or not options.records_failures:
                    advice = f"move {directory} away to start the run again"
                    raise NoValidCheckpointError(f"{error}; {advice}") from error
                moved = f"the run starts again, and the damaged files are in {claim.restart()}"
                _warn(callbacks, f"{error}; {moved}")
                result = attempt()
        # An error of one run, of any kind, must not affect the others: it is recorded and printed.
        except Exception as error:
            if isinstance(error, QkvaryError) or not options.records_failures:
                raise
            traceback.print_exc()
            result = _failure(cell, started, _reason(error))
        if claim is not None and result is not None:
            claim.finish(result)
    seconds = time.perf_counter() - began
    return CellEnd(outcome="stopped" if result is None else "made", seconds=seconds)


def _claim(
    store: Store, cell: Cell, again: int | None, on_first: OnFirst
) -> tuple[CellOutcome | None, Claim | None]:
    """Let the first process claim a run; return the obstacle (or None) and the claim (or None).

    All processes get the obstacle. Only the first process gets the claim.
    """
    claims: list[Claim] = []

    def claim() -> CellOutcome | None:
        config = cell.run.identity()
        try:
            found = store.claim(config, again=again)
        except BusyError:
            return "busy"
        if found is None:
            return "done_before"
        claims.append(found)
        return None

    return on_first(claim), next(iter(claims), None)


@contextmanager
def _hold(
    claim: Claim, cell: Cell, callbacks: Callbacks, options: CellOptions
) -> Generator[Callbacks]:
    """Yield callbacks that also copy the log to the tracker; release the run at the end."""
    run = TrackedRun(
        project=slug(options.project),
        name=f"{slug(cell.title)}-{claim.key[:8]}",
        config=to_dict(cell.run, identity=True),
        folder=claim.store.path / COPIES_NAME,
    )
    copy = LogCopy(options.tracker, run, lambda text: _warn(callbacks, text))

    def log(entry: Mapping[str, JsonValue]) -> None:
        copy.log(entry)
        callbacks.on_log(entry)

    # The copy ends after the run is recorded and released: a tracker that hangs loses no run.
    with closing(copy), claim:
        yield replace(callbacks, on_log=log)


def _warn(callbacks: Callbacks, text: str) -> None:
    callbacks.on_event(Event(step=0, steps=0, warning=text))


def _reason(error: Exception) -> str:
    # The sentences of this package say what is wrong; other errors need the place.
    if type(error) in (ValueError, NotImplementedError) and str(error).startswith("expected "):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _failure(cell: Cell, started: str, message: str) -> RunResult:
    record = make_record(cell, status="failed", started=started, message=message)
    return RunResult(record=record)
