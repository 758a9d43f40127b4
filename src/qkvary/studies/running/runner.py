"""Runs a study: submits open runs to an executor, and reads their outcome from the store.

Every task claims its runs from the store, so that a second runner on the same store, on this
machine or another, shares the work. Torch-free.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from qkvary.storage.durable import make_directory
from qkvary.storage.environment import Stop, stop_in_order
from qkvary.storage.errors import BusyError, QkvaryError, ResourceError, UsageError
from qkvary.storage.file_systems import find_file_system
from qkvary.studies.records import Record
from qkvary.studies.running.cells import DEFAULT_OPTIONS, MAX_CRASHES, CellEnd, CellOptions
from qkvary.studies.running.executors.contract import Executor, TaskEnd, WorkerTask
from qkvary.studies.running.executors.local import LocalExecutor, WorkerDiedError
from qkvary.studies.running.executors.task import execute_task
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Study
from qkvary.text.progress_line import ShowProgress, ignore, no_progress

TRAINER = "qkvary.studies.running.training"
POLL_SECONDS = 0.25
"""Seconds to wait for the end of a task, and between two checks of runs that other processes
hold."""
UNSEEN_SECONDS = 120.0
"""Maximum number of seconds to wait for the record of a run that a task reported as ended; file
servers show new files late."""
KILL_SECONDS = 2.0
"""Maximum number of seconds to wait for the end of killed processes."""
PUBLISH_SECONDS = 20.0
"""Minimum number of seconds between two calls of ``publish``."""
PUBLISH_SHARE = 0.05
"""Maximum share of the time to spend in ``publish``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of running a study."""

    planned: int
    done: int
    failed: int
    diverged: int
    missing: int
    """Number of runs without a record."""
    executed: int
    """Number of runs that ended in the workers of this runner."""
    seconds: float
    exit_code: int
    message: str = ""
    """The error that stopped the runner early; empty if there was none."""
    notes: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    """The reasons why runs failed or diverged, with the number of runs for each reason."""


class StudyRunner:
    """Submits the runs of a study to an executor, and records the end of each run."""

    def __init__(
        self,
        study: Study,
        store: Store,
        *,
        executor: Executor | None = None,
        retry_failed: bool = False,
        options: CellOptions = DEFAULT_OPTIONS,
        trainer: str = TRAINER,
        say: Callable[[str], None] = ignore,
        show_progress: ShowProgress = no_progress,
        announces_stop: bool = False,
        publish: Callable[[], str] | None = None,
    ) -> None:
        """Count all runs as remaining.

        Args:
            study: The study to run.
            store: The folder of the runs; other runners may work in it at the same time.
            executor: Executor of the runs; None for one worker process per usable core.
            retry_failed: Whether failed runs are run again.
            options: Options of the runs; the project is the study's name.
            trainer: The module whose ``train_cell`` trains a run.
            say: Prints a message.
            show_progress: Opens a progress display.
            announces_stop: Whether the first signal prints that the study is stopping.
            publish: Shows the results so far, and returns a sentence to print or an empty text. It
                is called when there are new results, at most every 20 seconds.
        """
        self.store, self.retry_failed = store, retry_failed
        self.executor = executor or LocalExecutor()
        self.task = WorkerTask(
            store=store.path.absolute(),
            cells=(),
            options=replace(options, project=study.name),
            trainer=trainer,
        )
        """The template of all submitted tasks: a task without runs."""
        self.cells = study.runs()
        self.left = dict(self.cells)
        """The runs that have not ended, by key."""
        self.again: dict[str, int] = {}
        """Finished runs to repeat: a mapping from run key to the version of the record."""
        self.futures: dict[Future[TaskEnd], tuple[str, ...]] = {}
        """The runs of each unfinished task."""
        self.ended: SimpleQueue[Future[TaskEnd]] = SimpleQueue()
        """Tasks that have ended and have not been processed."""
        self.reported: dict[str, tuple[CellEnd, float]] = {}
        """For each run of a finished task, by run key: its end, and the time of the report."""
        self.waiting: set[str] = set()
        """Runs that other processes hold, or whose record is not visible yet."""
        self.crashes: dict[str, str] = {}
        """For each run of a lost task, by run key: the reason for the last loss."""
        self.lost: Counter[tuple[str, int]] = Counter()
        """Number of lost tasks, by key and step of the run that was interrupted."""
        self.notes: list[str] = []
        self.stop = Stop()
        self.exit_code = 0
        self.message = ""
        self.records: dict[str, Record] = {}
        """The records of the runs that have ended."""
        self.executed = 0
        """Number of runs that ended in the workers of this runner."""
        self.last = ""
        """The message about the run that was done last."""
        self.began = time.monotonic()
        self._say, self._show_progress, self._announces_stop = say, show_progress, announces_stop
        self._publish, self._published = publish, 0
        self._next_publication = self.began + PUBLISH_SECONDS

    def run(self) -> RunSummary:
        """Execute every run of the study that is not done in the store.

        On Ctrl-C, SIGTERM or SIGHUP each worker writes a checkpoint and ends; a second signal kills
        the workers.
        """
        executor = self.executor
        try:
            self._find_open_runs()
            prepare_sets(self.left.values(), self._note)
            make_directory(self.store.path)
            if executor.is_remote and (file_system := find_file_system(self.store.path)):
                self._note(file_system.lock_problem or "")
            with (
                stop_in_order(announce=self._announces_stop, end=self.kill) as self.stop,
                self._show_progress("running", "runs") as show,
            ):
                self._submit(self.left)
                while self.left and not self.is_ending:
                    self._settle(POLL_SECONDS)
                    self._look_at_waiting()
                    if self.left and not self.is_ending:
                        self.publish()
                        show(len(self.records), len(self.cells), self.describe_runs())
                if self.is_ending:
                    self._end_early()
        except BaseException:
            # The error that ended the study may also prevent cancelling its tasks.
            with suppress(Exception):
                executor.stop()
            raise
        finally:
            executor.shutdown(wait=not self.futures, cancel_futures=True)
        return self._summarise()

    def _summarise(self) -> RunSummary:
        counts = self.count()
        is_stopped = self.stop.is_set() and self.left
        code = 128 + self.stop.number if is_stopped else self.exit_code
        return RunSummary(
            planned=len(self.cells),
            done=counts["done"],
            failed=counts["failed"],
            diverged=counts["diverged"],
            missing=len(self.left),
            executed=self.executed,
            seconds=time.monotonic() - self.began,
            exit_code=code,
            message=self.message,
            notes=tuple(self.notes),
            reasons=Counter(_reason(one) for one in self.records.values() if one.message),
        )

    @property
    def is_ending(self) -> bool:
        """Whether a signal or an error ends the study early."""
        return self.stop.is_set() or bool(self.exit_code)

    def _find_open_runs(self) -> None:
        """Find the remaining runs; report and reopen damaged ones.

        A finished run that is requested again keeps its record until a worker begins it.
        """
        # If a check aborts, runs that are not checked yet count as open.
        for key, cell in self.cells.items():
            record, problems = self.store.check(cell.run.identity())
            for text in problems:
                self._note(f"{cell.title}: {text}")
            if record is None:
                continue
            is_retried = self.retry_failed and record.status == "failed"
            if is_retried or self._lacks_network(cell, record):
                self.again[key] = self.store.version(key) or 0
                continue
            del self.left[key]
            self.records[key] = record

    def _lacks_network(self, cell: Cell, record: Record) -> bool:
        """Return whether a finished run lacks a network that this study keeps."""
        taken = record.metrics.get("steps")
        reached = cell.run.training.steps if taken is None else taken
        return record.status == "done" and any(
            (step is None or step <= reached) and self.store.network(cell.run_key, step) is None
            for step in cell.kept_networks
        )

    # ---- tasks

    def _submit(self, keys: Iterable[str]) -> None:
        """Submit runs, several in each task if the executor asks for it."""
        left, size = list(keys), self.executor.runs_per_task
        tasks: list[WorkerTask] = []
        for first in range(0, len(left), size):
            some = left[first : first + size]
            cells = tuple(self.cells[key] for key in some)
            again = {key: self.again[key] for key in some if key in self.again}
            crashes = {key: self.crashes[key] for key in some if key in self.crashes}
            tasks.append(replace(self.task, cells=cells, again=again, crashes=crashes))
        futures = self.executor.submit_all(execute_task, tasks)
        for future, task in zip(futures, tasks, strict=True):
            self.futures[future] = tuple(cell.run_key for cell in task.cells)
        for future in futures:
            future.add_done_callback(self.ended.put)

    def _settle(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a task to end, and check the runs of tasks that have ended."""
        with suppress(Empty):
            self._handle_end(self.ended.get(timeout=seconds))
            while True:
                self._handle_end(self.ended.get_nowait())

    def _handle_end(self, future: Future[TaskEnd]) -> None:
        keys = self.futures.pop(future)
        try:
            end = future.result()
            ends, warnings, error = end.ends, end.warnings, end.error
        except ConnectionError as error:
            self._abort(ResourceError.exit_code, f"the scheduler cannot be reached: {error}")
            return
        # Such an error, for example of the user's file in a worker, would come again.
        except (QkvaryError, ValueError) as error:
            self._abort(getattr(error, "exit_code", UsageError.exit_code), str(error))
            return
        # Executors raise whatever exceptions their libraries raise.
        except Exception as error:  # noqa: BLE001
            self._handle_loss(keys, error)
            return
        for text in warnings:
            self._note(text)
        if error is not None:
            where = f" (on {end.node})" if self.executor.is_remote else ""
            self._abort(error.exit_code, f"{error}{where}")
        self._look_at(keys, ends)

    def _handle_loss(self, keys: Iterable[str], error: Exception) -> None:
        """Submit the runs of a lost task again; abort the study if tasks are lost too often.

        If a run crashes its processes too often, the next task with this run records it as failed.
        """
        for key in keys:
            if key in self.left and self._has_ended(key):
                self._end(key, CellEnd(outcome="made"))
        left = [key for key in keys if key in self.left]
        if self.is_ending or not left:
            return
        # A task executes its runs in order.
        first, reason = left[0], _describe(error)
        self.crashes |= dict.fromkeys(left, f"{reason}\n{getattr(error, 'tail', '')}".strip())
        step = self.store.newest_step(first)
        self.lost[first, step] += 1
        if self.lost[first, step] > MAX_CRASHES + 1:
            times = self.lost[first, step]
            text = f"the tasks of this study were lost {times} times, the last: {reason}"
            self._abort(ResourceError.exit_code, text)
            return
        self._note(f"{self.cells[first].title}: {reason}; it is submitted again")
        self._submit(left)

    # ---- runs

    def _look_at(self, keys: Iterable[str], ends: Mapping[str, CellEnd]) -> None:
        """Read the outcome of runs from the store, and submit those that are open."""
        now, left = time.monotonic(), list[str]()
        for key in [key for key in keys if key in self.left]:
            if key in ends and ends[key].outcome in ("made", "done_before"):
                self.reported.setdefault(key, (ends[key], now))
            one, since = self.reported.get(key, (CellEnd(outcome="done_before"), None))
            if self._has_ended(key):
                self._end(key, one)
            elif self._is_running(key) or (since is not None and now - since < UNSEEN_SECONDS):
                self.waiting.add(key)
            elif since is None:
                left.append(key)
            else:
                self._abort(
                    UsageError.exit_code,
                    f"{self.cells[key].title} has ended, but its record is not in "
                    f"{self.store.path}: use --out to name a folder that all nodes see under the "
                    "same path",
                )
        if left and not self.is_ending:
            self._submit(left)

    def _look_at_waiting(self) -> None:
        """Check whether runs of other processes have ended or become open."""
        free = {key for key in self.waiting if not self._is_running(key)}
        self.waiting -= free
        self._look_at(sorted(free), {})
        if self.waiting and not self.futures:
            key = min(self.waiting)
            holder = self.store.owner(key) or "the record"
            self._note(f"waiting for {holder}: {self.cells[key].title}", once=True)

    def _has_ended(self, key: str) -> bool:
        """Return whether a run is done: it has a record, and was not requested again."""
        version = self.store.version(key)
        return version is not None and version != self.again.get(key)

    def _is_running(self, key: str) -> bool:
        return self.store.state(key) == "running"

    def _end(self, key: str, one: CellEnd) -> None:
        """Mark a run as ended, and show the result that its record states."""
        self.waiting.discard(key)
        record = self.store.record(key)
        if self.left.pop(key, None) is None or record is None:
            return
        self.records[key] = record
        if one.outcome != "made":
            return
        self.executed += 1
        cell = self.cells[key]
        result = _reason(record)
        if not result and record.headline is not None:
            result = f"{cell.run.task.metric} {record.headline:.4g}"
        said = f"{cell.title}: {record.status}, {result} ({one.seconds:.1f} s)"
        if record.status == "done":
            self.last = said
        else:
            self._note(said)

    # ---- an early end

    def _abort(self, code: int, message: str) -> None:
        """End the study early; the code and the message of the first call are kept."""
        if not self.exit_code:
            self.exit_code, self.message = code, message

    def kill(self) -> None:
        """Kill the tasks; this does not count as a crash of their runs."""
        begun = self._find_running()
        # The process ends now, so errors of the scheduler no longer matter.
        with suppress(Exception):
            self.executor.kill()
        self._forget_deaths(begun)

    def _find_running(self) -> set[str]:
        """Return the submitted runs whose locks are held."""
        return {key for keys in self.futures.values() for key in keys if self._is_running(key)}

    def _forget_deaths(self, begun: Iterable[str]) -> None:
        """Set the number of deaths of killed runs to 0, by claiming and releasing the runs."""
        deadline = time.monotonic() + KILL_SECONDS
        for key in begun:
            while self._is_running(key) and time.monotonic() < deadline:
                time.sleep(0.01)
            # Another runner may have resumed the run.
            with suppress(BusyError):
                claim = self.store.claim(self.cells[key].run.identity())
                if claim is not None:
                    claim.release()

    def _end_early(self) -> None:
        """Stop the tasks, and wait for the checkpoints of the running ones."""
        begun = self._find_running()
        self.executor.stop()
        deadline = time.monotonic() + self.executor.stop_seconds
        while self.futures and time.monotonic() < deadline:
            self._settle(POLL_SECONDS)
            running = self._find_running()
            begun |= running
            # Schedulers report the end of cancelled tasks late, or never.
            if self.executor.is_remote and not running:
                break
        if self.futures:
            self.executor.kill()
        self._forget_deaths(begun & self.left.keys())

    # ---- messages

    def describe_runs(self) -> str:
        """Return the numbers of failed and diverged runs, and the result of the last run."""
        counts = self.count()
        parts = [f"{counts[bad]} {bad}" for bad in ("failed", "diverged") if counts[bad]]
        return ", ".join([*parts, *([f"last: {self.last}"] if self.last else [])])

    def count(self) -> Counter[str]:
        """Return the number of ended runs for each status."""
        return Counter(record.status for record in self.records.values())

    def publish(self) -> None:
        """Publish the results so far, if there are new ones and enough time has passed."""
        began, records = time.monotonic(), len(self.records)
        if self._publish is None or records == self._published or began < self._next_publication:
            return
        self._published = records
        try:
            self._note(self._publish())
        # No page of partial results is worth a study.
        except Exception as error:  # noqa: BLE001
            self._publish = None
            self._note(f"the page cannot be written now, only at the end: {error}")
        spent = time.monotonic() - began
        self._next_publication = began + max(PUBLISH_SECONDS, spent / PUBLISH_SHARE)

    def _note(self, text: str, *, once: bool = False) -> None:
        """Show and keep a message that is not empty; with ``once``, skip a message shown before."""
        if text and not (once and text in self.notes):
            self.notes.append(text)
            self._say(text)


def prepare_sets(cells: Iterable[Cell], report: Callable[[str], None]) -> None:
    """Check the data of every run once; download or prepare missing data."""
    tasks = [cell.run.task for cell in cells]
    for task in {
        (type(task), task.data_fingerprint, getattr(task, "data", "")): task for task in tasks
    }.values():
        task.check_data(report)


def _reason(record: Record) -> str:
    """Return the reason if a run failed or diverged, in one line; else an empty text."""
    return next(iter(record.message.splitlines()), "")


def _describe(error: Exception) -> str:
    """Describe why a task was lost, in one line."""
    kind = [] if isinstance(error, QkvaryError | WorkerDiedError) else [type(error).__name__]
    said = str(error).strip().splitlines()
    printed = getattr(error, "tail", "").splitlines()
    return ": ".join([*kind, *said[-1:], *printed[-1:]])
