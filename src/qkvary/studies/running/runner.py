"""Runs a study: starts workers, shows progress, replaces crashed workers. Torch-free.

The workers claim runs from the store by themselves, so a second runner on the same store, on this
machine or another, shares the work.
"""

import os
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, NewerFormatError, ResourceError
from qkvary.studies.running.data_sets import prepare_sets
from qkvary.studies.running.estimates import TimeEstimate
from qkvary.studies.running.live import (
    Display,
    LiveDisplay,
    PlainDisplay,
    ProgressView,
    WorkerLine,
)
from qkvary.studies.running.messages import STOPPING, Job, WorkerMessage
from qkvary.studies.running.publishing import Publisher
from qkvary.studies.running.recording import make_record, run_identity
from qkvary.studies.running.signals import handle_endings, leave_terminal
from qkvary.studies.running.store import Store
from qkvary.studies.running.worker_process import WorkerProcess, describe_end
from qkvary.studies.study import Cell, Study

WORKER_MODULE = "qkvary.studies.running.worker"
MAX_CRASHES = 3
"""A run that crashes more workers than this counts as failed."""
MAX_FAILED_STARTS = 3
"""After this many consecutive workers that crash before they are ready, the runner aborts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Options of the runner; they do not affect results."""

    workers: int | None = None
    """Worker processes; None for one per processor."""
    strict: bool = False
    """Whether failed and diverged runs make the exit code 1."""
    retry_failed: bool = False
    """Whether to repeat failed runs."""
    checkpoint_seconds: float = 30.0
    """Seconds between two checkpoints of a run."""
    quiet: bool = False
    """Whether to print nothing."""
    worker_module: str = WORKER_MODULE
    """The program of the workers."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of running a study."""

    planned: int
    """Runs of the study."""
    done: int
    """Runs that completed."""
    failed: int
    """Runs that ended with an error."""
    diverged: int
    """Runs whose loss or gradient was not finite."""
    missing: int
    """Runs without a record."""
    executed: int
    """Runs that ended in the workers of this runner."""
    seconds: float
    """Duration."""
    exit_code: int
    """Exit code for the command."""
    message: str = ""
    """Why the runner stopped early, if it did."""
    notes: tuple[str, ...] = ()
    """Warnings that were shown."""


def run_study(
    study: Study,
    store: Store,
    options: RunnerOptions | None = None,
    *,
    console: Console | None = None,
    publish: Callable[[], None] | None = None,
) -> RunSummary:
    """Execute every run of ``study`` that is not done in ``store``.

    On Ctrl-C, SIGTERM or SIGHUP each worker writes a checkpoint and ends; a second signal kills
    them.

    Args:
        study: The study.
        store: The store of runs.
        options: Options of the runner.
        console: Console for progress; standard error by default.
        publish: Shows the results so far to the user; called now and then, with new results.
    """
    cells = study.cells()
    return run_cells(study.name, cells, store, options, console=console, publish=publish)


def run_cells(
    name: str,
    cells: Sequence[Cell],
    store: Store,
    options: RunnerOptions | None = None,
    *,
    console: Console | None = None,
    publish: Callable[[], None] | None = None,
) -> RunSummary:
    """Execute those of ``cells`` that are not done in ``store``, as ``run_study`` does."""
    chosen = options or RunnerOptions()
    runner = _Runner(cells, store, chosen)
    runner.view.name = name
    shown = console or Console(stderr=True)
    runner.display = _display(shown, runner.view, chosen.quiet)
    if publish:
        runner.publisher = Publisher(publish)
    try:
        with handle_endings(runner.handle_signal):
            return runner.run()
    finally:
        runner.display.close()


def _display(console: Console, view: ProgressView, quiet: bool) -> Display:
    if quiet:
        return Display()
    kind = LiveDisplay if console.is_terminal else PlainDisplay
    return kind(console, view)


class _Runner:
    """The state of one call of ``run_cells``."""

    def __init__(self, cells: Sequence[Cell], store: Store, options: RunnerOptions) -> None:
        self.store, self.options = store, options
        # Several cells may share one run.
        self.cells = tuple({cell.run_key: cell for cell in cells}.values())
        self.view = ProgressView(name="", total=len(self.cells))
        self.display = Display()
        self.estimate = TimeEstimate()
        self.workers: list[WorkerProcess] = []
        self.selector = selectors.DefaultSelector()
        self.remaining: dict[int, Cell] = {}
        self.crashes: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.executed = self.failed_starts = self.started_workers = self.signal = 0
        self.stop_announced = False
        self.exit_code, self.message = 0, ""
        self.began = time.monotonic()
        self.publisher = Publisher()

    # ---- phases

    def run(self) -> RunSummary:
        try:
            self.find_open_runs()
        except NewerFormatError as error:
            self.abort(error.exit_code, str(error))
        else:
            prepare_sets(self.remaining.values(), self.note)
            self.supervise()
        return self.summary()

    def find_open_runs(self) -> None:
        """Find the remaining runs; report and reopen damaged ones."""
        # Runs that are not checked yet count as remaining if a check aborts.
        self.remaining = dict(enumerate(self.cells))
        for number, cell in enumerate(self.cells):
            status = self.check_run(cell)
            if status is not None:
                del self.remaining[number]
                self.count(number, status)

    def check_run(self, cell: Cell) -> str | None:
        """Return the status of a finished run, or None if it must be executed."""
        key = cell.run_key
        if self.store.state(key) != "done":
            return None
        problem = self.store.find_damage(key)
        record = None if problem else self.store.record(key)
        status = None if record is None else record.status
        again = self.options.retry_failed and status == "failed"
        # An earlier study did not keep the network.
        again |= status == "done" and any(
            self.store.network(key, step) is None for step in cell.kept_networks
        )
        if problem is None and not again and self.store.is_clean(key):
            return record.status if record else None
        try:
            claim = self.store.claim(key, run_identity(cell.run), again=again)
        except BusyError:
            return record.status if record else None
        if claim is None:
            return record.status if record else None
        for warning in claim.warnings:
            self.note(f"{cell.title}: {warning}")
        claim.release()
        return None

    def supervise(self) -> None:
        wanted = self.options.workers or os.cpu_count() or 1
        try:
            for _ in range(min(wanted, len(self.remaining))):
                self.start_worker()
            while self.workers:
                self.poll_workers()
                self.publish_results()
        except BaseException:
            for worker in self.workers:
                worker.kill()
            raise
        finally:
            self.selector.close()

    def summary(self) -> RunSummary:
        troubled = self.options.strict and (self.view.failed or self.view.diverged)
        if self.signal and self.remaining:
            self.exit_code = 128 + self.signal
        return RunSummary(
            planned=len(self.cells),
            done=self.counts["done"],
            failed=self.counts["failed"],
            diverged=self.counts["diverged"],
            missing=len(self.remaining),
            executed=self.executed,
            seconds=time.monotonic() - self.began,
            exit_code=self.exit_code or (1 if troubled else 0),
            message=self.message,
            notes=tuple(self.notes),
        )

    # ---- signals and notes

    def handle_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            for worker in self.workers:
                worker.kill()
            self.display.close()
            os._exit(128 + number)
        self.signal = number
        leave_terminal(number)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.display.note(text)

    def abort(self, code: int, message: str) -> None:
        if not self.exit_code:
            self.exit_code, self.message = code, message
        self.stop()

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    # ---- workers

    def job(self) -> Job:
        return Job(
            store=self.store.path.absolute(),
            cells=tuple(self.cells),
            checkpoint_seconds=self.options.checkpoint_seconds,
        )

    def start_worker(self) -> None:
        number = self.started_workers % (self.options.workers or os.cpu_count() or 1) + 1
        taken = {worker.number for worker in self.workers}
        while number in taken:
            number += 1
        self.started_workers += 1
        worker = WorkerProcess(number, self.options.worker_module, self.job())
        self.workers.append(worker)
        self.selector.register(worker.message_pipe, selectors.EVENT_READ, (worker, "message"))
        self.selector.register(worker.tail_pipe, selectors.EVENT_READ, (worker, "tail"))
        self.view.workers[number] = WorkerLine()

    def poll_workers(self) -> None:
        """Handle messages of the workers, for at most a quarter of a second."""
        for key, _events in self.selector.select(timeout=0.25):
            worker, pipe = key.data
            if worker not in self.workers:
                continue
            if pipe == "tail":
                if not worker.read_tail():
                    self.selector.unregister(worker.tail_pipe)
                continue
            message = worker.read_messages()
            if message is None:
                self.reap(worker)
                continue
            for item in message:
                self.handle_message(worker, item)
        if self.signal:
            if not self.stop_announced:
                self.stop_announced = True
                self.display.note(STOPPING)
            self.stop()
        self.display.refresh()

    def publish_results(self) -> None:
        if self.remaining and not self.signal:
            problem = self.publisher.publish()
            if problem:
                self.note(problem)

    def reap(self, worker: WorkerProcess) -> None:
        self.selector.unregister(worker.message_pipe)
        if worker.tail_pipe in self.selector.get_map():
            self.selector.unregister(worker.tail_pipe)
            while worker.read_tail():
                pass
        code = worker.wait()
        self.workers.remove(worker)
        self.view.workers.pop(worker.number, None)
        if code == 0 or self.signal or self.exit_code:
            return
        self.failed_starts = 0 if worker.ready else self.failed_starts + 1
        if self.failed_starts >= MAX_FAILED_STARTS:
            printed = worker.tail.splitlines()
            last = printed[-1] if printed else "no output"
            message = f"workers crash at start ({describe_end(code)}): {last}"
            self.abort(ResourceError.exit_code, message)
            return
        # 143: this worker alone received SIGTERM and wrote a checkpoint.
        if worker.cell is not None and code != 128 + signal.SIGTERM:
            self.record_crash(worker, worker.cell, describe_end(code))
        if self.remaining:
            self.start_worker()

    def record_crash(self, worker: WorkerProcess, number: int, end: str) -> None:
        """Count a crash, and record the run as failed after too many."""
        cell = self.cells[number]
        self.crashes[number] += 1
        crash = f"{cell.title}: worker {worker.number} (process {worker.pid}) crashed with {end}"
        if self.crashes[number] <= MAX_CRASHES:
            self.note(f"{crash}; another worker resumes the run")
            return
        tail = f"\n{worker.tail}" if worker.tail else ""
        message = f"this run crashed {self.crashes[number]} workers, the last with {end}{tail}"
        try:
            claim = self.store.claim(cell.run_key, run_identity(cell.run))
        except BusyError:
            return
        if claim is None:
            return
        record = make_record(cell, status="failed", started=now(), message=message)
        claim.finish(record)
        self.note(f"{crash}, the {self.crashes[number]}th time; the run counts as failed")
        self.record_end(number, "failed", seconds=None)

    # ---- message

    def handle_message(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        line = self.view.workers.get(worker.number, WorkerLine())
        if message.kind == "ready":
            worker.ready = True
            line.title = "ready"
        elif message.kind == "started":
            worker.cell = message.cell
            self.view.workers[worker.number] = WorkerLine(title=self.cells[message.cell].title)
        elif message.kind == "progress":
            line.step, line.steps, line.loss = message.step, message.steps, message.loss
        elif message.kind == "waiting":
            self.wait_for(worker, message)
        elif message.kind == "note":
            self.note(f"{self.cells[message.cell].title}: {message.text}")
        elif message.kind == "fatal":
            self.abort(message.code, message.text)
        elif message.kind == "elsewhere":
            self.handle_elsewhere(message.cell)
        else:
            worker.cell = None
            self.executed += 1
            self.record_end(message.cell, message.status, seconds=message.seconds, message=message)

    def wait_for(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        """Show that other processes hold all remaining runs; report those of other runners."""
        if self.is_ours(message.text):
            self.view.workers[worker.number] = WorkerLine(title="waiting for the last runs")
            return
        title = f"waiting for {message.text}: {self.cells[message.cell].title}"
        self.view.workers[worker.number] = WorkerLine(title=title)
        self.note(f"worker {worker.number} is {title}")

    def is_ours(self, owner: str) -> bool:
        return any(f"process {worker.pid} on" in owner for worker in self.workers)

    def handle_elsewhere(self, number: int) -> None:
        if number in self.remaining:
            record = self.store.record(self.cells[number].run_key)
            self.record_end(number, record.status if record else "done", seconds=None)

    def count(self, number: int, status: str) -> None:
        self.counts[status] += 1
        self.view.done += 1
        self.view.failed += status == "failed"
        self.view.diverged += status == "diverged"
        if status == "done" and (record := self.store.record(self.cells[number].run_key)):
            self.view.add(self.cells[number], record.headline)
        self.publisher.add()

    def record_end(
        self,
        number: int,
        status: str,
        *,
        seconds: float | None,
        message: WorkerMessage | None = None,
    ) -> None:
        """Record that a run has ended."""
        if self.remaining.pop(number, None) is None:
            return
        cell = self.cells[number]
        self.count(number, status)
        if seconds is not None:
            self.estimate.add(cell, seconds)
        elapsed = time.monotonic() - self.began
        self.view.runs_per_minute = 60.0 * self.executed / elapsed if self.executed else None
        left = tuple(self.remaining.values())
        self.view.seconds_left = self.estimate.seconds_left(left, len(self.workers))
        if message is None:
            return
        result = message.text.splitlines()[0] if message.text else ""
        if not result and message.loss is not None:
            result = f"{cell.run.task.metric} {message.loss:.4g}"
        text = f"{cell.title}: {status}, {result} ({message.seconds:.1f} s)"
        if status != "done":
            self.notes.append(text)
            self.display.note(text)
        else:
            self.display.ended(text)
