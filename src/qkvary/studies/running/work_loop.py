"""The loop of a worker: claim an open run, train it, record it. Torch-free.

There is no queue: every worker reads the store itself, so any number of runners can share the runs
of one store. The caller supplies the function that trains a run.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from qkvary.arch.canonical import identity_dict
from qkvary.storage.checkpoint_folders import DEFAULT_KEEP
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, NoValidCheckpointError, QkvaryError
from qkvary.studies.running.messages import Job, WorkerMessage
from qkvary.studies.running.recording import make_record, run_identity
from qkvary.studies.running.records import Record
from qkvary.studies.running.store import Claim, Store
from qkvary.studies.study import Cell
from qkvary.text.names import slug
from qkvary.training.progress import NO_CALLBACKS, Callbacks, Event
from qkvary.training.trackers import LogCopy, TrackedRun

COPIES_NAME = "logs"
"""The folder of the copies of logs, below the store."""
MAX_CRASHES = 3
"""A run that crashes more processes than this without progress counts as failed."""
POLL_SECONDS = 0.5
"""Seconds between checks of runs that other processes hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Settings and callbacks that a worker passes to a run."""

    stop: Callable[[], bool]
    """Returns True if the run should write a checkpoint and end."""
    checkpoint_seconds: float
    """Seconds between two checkpoints."""
    keep: int = DEFAULT_KEEP
    """Number of newest checkpoints to keep."""
    callbacks: Callbacks = NO_CALLBACKS
    """Callbacks of the training loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run."""

    record: Record
    """The record."""
    attention: bytes | None = None
    """Attention maps, if it has any."""
    samples: bytes | None = None
    """Samples, if it has any."""


TrainFunction = Callable[[Cell, Claim, RunContext], RunResult | None]
"""Trains a run in the claimed folder; returns None if it was stopped before the end."""


class Worker:
    """Executes the runs of one job."""

    def __init__(
        self,
        job: Job,
        train_run: TrainFunction,
        send: Callable[[WorkerMessage], None],
        *,
        records_failures: bool = True,
    ) -> None:
        """Create a worker.

        Args:
            job: The runs.
            train_run: Trains one run.
            send: Sends a message to the runner.
            records_failures: Whether to record a run that raises an error as failed and continue
                with the others. If False, the error is raised and the run stays open with its
                checkpoints.
        """
        self._job, self._train, self._send = job, train_run, send
        self._records_failures = records_failures
        self._store = Store(job.store)
        self._stopping = threading.Event()
        self._keys = [cell.run_key for cell in job.cells]
        self._waiting_for = ""

    def stop(self) -> None:
        """Request a checkpoint and an end."""
        self._stopping.set()

    @property
    def is_stopped(self) -> bool:
        """Whether an end was requested."""
        return self._stopping.is_set()

    def work(self) -> None:
        """Work until every run is done or ``stop`` was called.

        Raises:
            QkvaryError: if no run can continue, for example because the disk is full.
        """
        left = list(range(len(self._job.cells)))
        while left and not self.is_stopped:
            before = len(left)
            left = [number for number in left if not self._is_done(number)]
            if left and len(left) == before and not self.is_stopped:
                self._wait(left[0])

    def _wait(self, number: int) -> None:
        # None if the run was released just now.
        owner = self._store.owner(self._keys[number])
        if owner is not None and str(owner) != self._waiting_for:
            self._waiting_for = str(owner)
            self._send(WorkerMessage(kind="waiting", cell=number, text=self._waiting_for))
        self._stopping.wait(POLL_SECONDS)

    def _is_done(self, number: int) -> bool:
        """Execute a run if it is open; return whether it is done."""
        if self._stopping.is_set():
            return False
        key, cell = self._keys[number], self._job.cells[number]
        state = self._store.state(key)
        if state == "running":
            return False
        if state == "open" or self._is_made_again(key):
            again = self._job.again.get(key)
            with suppress(BusyError):
                claim = self._store.claim(key, run_identity(cell.run), again=again)
                if claim is not None and self._records_failures and claim.deaths > MAX_CRASHES:
                    return self._give_up(number, claim)
                if claim is not None:
                    return self._execute(number, claim)
            if self._store.state(key) != "done" or self._is_made_again(key):
                return False
        self._send(WorkerMessage(kind="elsewhere", cell=number))
        return True

    def _is_made_again(self, key: str) -> bool:
        """Return whether a finished run is to be made again, and no worker has begun it."""
        again = self._job.again.get(key)
        return again is not None and again == self._store.version(key)

    def _give_up(self, number: int, claim: Claim) -> bool:
        """Leave the run to the runner, which may know why it crashed."""
        owner = claim.lock.last_owner
        text = "" if owner is None else f"the last was {owner}"
        claim.release(keep_deaths=True)
        self._send(WorkerMessage(kind="given_up", cell=number, text=text))
        return True

    def _execute(self, number: int, claim: Claim) -> bool:
        """Execute and record a run; return whether it is done."""
        started = time.perf_counter()
        self._waiting_for = ""
        self._send(WorkerMessage(kind="started", cell=number))
        for warning in claim.warnings:
            self._note(number, warning)
        copy = self._copy_log(number)
        try:
            made = None
            try:
                made = self._attempt(number, claim, copy)
            finally:
                if made is None:
                    claim.release()
            if made is None:
                return False
            claim.finish(made.record, attention=made.attention, samples=made.samples)
            record = made.record
            self._send(
                WorkerMessage(
                    kind="ended",
                    cell=number,
                    status=record.status,
                    text=record.message,
                    loss=record.headline,
                    seconds=time.perf_counter() - started,
                )
            )
            return True
        finally:
            # After the record: a tracker that hangs loses no run.
            copy.finish()

    def _attempt(self, number: int, claim: Claim, copy: LogCopy) -> RunResult | None:
        cell, started = self._job.cells[number], now()
        context = RunContext(
            stop=self._stopping.is_set,
            callbacks=Callbacks(on_event=partial(self._pass_on, number), on_log=copy.log),
            checkpoint_seconds=self._job.checkpoint_seconds,
            keep=self._job.keep,
        )
        try:
            try:
                return self._train(cell, claim, context)
            except NoValidCheckpointError as error:
                if not self._records_failures:
                    advice = f"move {claim.directory} away to start again"
                    raise NoValidCheckpointError(f"{error}; {advice}") from error
                folder = claim.restart()
                restart = f"the run starts again, and the damaged files are in {folder}"
                self._note(number, f"{error}; {restart}")
                return self._train(cell, claim, context)
        except QkvaryError:
            raise
        # An error of one run must not affect the others.
        except Exception as error:
            if not self._records_failures:
                raise
            traceback.print_exc()
            record = make_record(cell, status="failed", started=started, message=_reason(error))
            return RunResult(record=record)

    def _copy_log(self, number: int) -> LogCopy:
        """Return the copy of a run's log for the tracker of the job."""
        cell = self._job.cells[number]
        return LogCopy(
            self._job.tracker,
            TrackedRun(
                project=slug(self._job.project),
                name=f"{slug(cell.title)}-{self._keys[number][:8]}",
                config=identity_dict(cell.run),
                folder=self._job.store / COPIES_NAME,
            ),
            partial(self._note, number),
        )

    def _note(self, number: int, text: str) -> None:
        self._send(WorkerMessage(kind="note", cell=number, text=text))

    def _pass_on(self, number: int, event: Event) -> None:
        if event.warning:
            self._note(number, event.warning)
        else:
            self._send(
                WorkerMessage(
                    kind="progress",
                    cell=number,
                    step=event.step,
                    steps=event.steps,
                    part=event.part,
                    loss=event.loss,
                )
            )


def _reason(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def serve(train_run: TrainFunction) -> int:
    """Run a worker process: read the job from standard input, execute it, return the exit code.

    Messages go to the original standard output; all other output goes to standard error.
    """
    faulthandler.enable()
    channel = os.dup(1)
    os.dup2(2, 1)
    reader = os.fdopen(os.dup(0), "rb")
    line = reader.readline()
    if not line:
        return 0

    def send(message: WorkerMessage) -> None:
        try:
            os.write(channel, message.to_line())
        except BrokenPipeError:
            worker.stop()

    worker = Worker(Job.from_line(line), train_run, send)

    def terminate(_number: int, _frame: FrameType | None) -> None:
        if terminated:
            os._exit(128 + signal.SIGTERM)
        terminated.append(True)
        worker.stop()

    def listen() -> None:
        while os.read(0, 1024):
            pass
        worker.stop()

    terminated: list[bool] = []
    signal.signal(signal.SIGTERM, terminate)
    # The runner gets these too, and stops its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=listen, daemon=True).start()
    send(WorkerMessage(kind="ready"))
    code = 0
    try:
        worker.work()
    except QkvaryError as error:
        send(WorkerMessage(kind="fatal", text=str(error), code=error.exit_code))
        code = error.exit_code
    sys.stderr.flush()
    return 128 + signal.SIGTERM if terminated else code
