"""Hands open runs to an executor, and reads the store for what became of them. Torch-free."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from qkvary.storage.errors import (
    BusyError,
    DamagedError,
    NewerFormatError,
    QkvaryError,
    ResourceError,
)
from qkvary.studies.running.cells import (
    MAX_CRASHES,
    CellEnd,
    describe_crashes,
    record_failure,
)
from qkvary.studies.running.executors.contract import Executor, Resources, Task, TaskEnd
from qkvary.studies.running.executors.local import WorkerDiedError
from qkvary.studies.running.executors.task import execute_task
from qkvary.studies.running.live import Display, ProgressView, Publisher
from qkvary.studies.running.nodes import Nodes
from qkvary.studies.running.records import Record, run_identity
from qkvary.studies.running.signals import STOPPING
from qkvary.studies.running.store import Claim, Store
from qkvary.studies.study import Cell

POLL_SECONDS = 0.25
"""Seconds to wait for the end of a task."""
BUSY_SECONDS = 0.5
"""Seconds between two checks of runs that other processes hold."""
CLAIM_ATTEMPTS, CLAIM_SECONDS = 20, 0.01
"""Attempts to claim a run after a crash, and seconds between them."""
KILL_SECONDS = 2.0
"""Maximum of seconds to wait for the end of tasks that are killed."""
_MISSING = "its node says that it ended, but no result returned"


class Scheduler:
    """The runs of one call of ``run_study``: those that are left, and how the others ended."""

    def __init__(
        self,
        name: str,
        cells: tuple[Cell, ...],
        executor: Executor,
        task: Task,
        *,
        retry_failed: bool,
        publish: Callable[[], str] | None,
    ) -> None:
        """Count all runs as left.

        Args:
            name: Name of the study.
            cells: The runs.
            executor: Executes tasks.
            task: A task, without its runs.
            retry_failed: Whether to repeat failed runs.
            publish: Shows the results so far to the user.
        """
        self.store, self.cells, self.executor = Store(task.store), cells, executor
        self.retry_failed = retry_failed
        self.remaining: dict[int, Cell] = dict(enumerate(cells))
        self.again: dict[str, int] = {}
        """Versions of the records of runs to be made again, by run key."""
        self.view = ProgressView(name=name, total=len(cells), running=self.read_progress)
        self.display = Display()
        self.is_shared = self.executor.shared_folder
        self.futures: dict[Future[TaskEnd], tuple[int, ...]] = {}
        """The runs of each task that has not ended."""
        self.ended: SimpleQueue[Future[TaskEnd]] = SimpleQueue()
        """The tasks that have ended, and were not looked at."""
        self.waiting: set[int] = set()
        """Runs that other processes hold."""
        self.lost: Counter[int] = Counter()
        """Tasks of each run that were lost consecutively without having started it."""
        self.notes: list[str] = []
        self.executed = self.signal = self.exit_code = 0
        self.message = ""
        self.began, self.looked = time.monotonic(), 0.0
        self.publisher = Publisher(publish)
        self.nodes = Nodes(self.store, executor)
        self.task = replace(task, marker=self.nodes.marker, scratch=self.nodes.scratch)

    # ---- the loop

    def run(self) -> None:
        """Execute all runs that are left, until a signal or an error ends it."""
        executor = self.executor
        try:
            self.find_open_runs()
            prepare_sets(self.remaining.values(), self.note)
            if executor.is_remote:
                self.nodes.prepare(self.remaining.values(), self.note)
            self.submit(self.remaining)
            while self.remaining and not self.is_ending:
                self.settle(POLL_SECONDS)
                self.look_at_busy()
                self.publish()
                self.display.refresh()
            if self.is_ending:
                self.stop()
            self.add_held()
        except NewerFormatError as error:
            self.abort(error.exit_code, str(error))
        except BaseException:
            # What ended the study may also keep its tasks from being cancelled.
            with suppress(Exception):
                executor.stop()
            raise
        finally:
            executor.shutdown(wait=not self.futures, cancel_futures=True)
            self.nodes.close()

    @property
    def is_ending(self) -> bool:
        """Whether a signal or an error ends the study early."""
        return bool(self.signal or self.exit_code)

    def submit(self, numbers: Iterable[int], *, one_by_one: bool = False) -> None:
        """Submit runs, in tasks of runs with the same needs."""
        tasks = list(self.group(numbers, 1 if one_by_one else self.executor.runs_per_task))
        for needs in dict.fromkeys(task.resources for _, task in tasks):
            obstacle = self.executor.find_obstacle(needs)
            if obstacle and obstacle not in self.notes:
                self.note(obstacle)
        futures = self.executor.submit_all(execute_task, [task for _, task in tasks])
        self.futures |= dict(zip(futures, (some for some, _ in tasks), strict=True))
        for future in futures:
            future.add_done_callback(self.ended.put)

    def group(self, numbers: Iterable[int], size: int) -> Iterator[tuple[tuple[int, ...], Task]]:
        """Yield the numbers of at most ``size`` runs with the same needs, and their task."""
        groups: dict[Resources, list[int]] = {}
        for number in numbers:
            groups.setdefault(self.executor.needs(self.cells[number]), []).append(number)
        for resources, group in groups.items():
            for first in range(0, len(group), size):
                some = tuple(group[first : first + size])
                keys = [self.cells[number].run_key for number in some]
                yield (
                    some,
                    replace(
                        self.task,
                        cells=tuple(self.cells[number] for number in some),
                        again={key: self.again[key] for key in keys if key in self.again},
                        resources=resources,
                    ),
                )

    def settle(self, seconds: float) -> None:
        """Wait up to some seconds for tasks to end, and look at their runs."""
        with suppress(Empty):
            self.settle_one(self.ended.get(timeout=seconds))
            while True:
                self.settle_one(self.ended.get_nowait())

    def settle_one(self, future: Future[TaskEnd]) -> None:
        """Look at the runs of a task that has ended."""
        numbers = self.futures.pop(future)
        try:
            end = future.result()
        except ConnectionError as error:
            self.abort(ResourceError.exit_code, f"the scheduler cannot be reached: {error}")
        # Executors raise whatever their libraries do.
        except Exception as error:  # noqa: BLE001
            self.handle_loss(numbers, error)
        else:
            self.handle_end(numbers, end)

    def handle_end(self, numbers: tuple[int, ...], end: TaskEnd) -> None:
        """Read from the store what became of the runs of a task."""
        for text in end.warnings:
            self.note(text)
        ends = dict(zip(numbers, end.ends, strict=False))
        try:
            self.add_runs(numbers, ends, end.runs)
        except DamagedError as error:
            self.handle_loss(numbers, error)
            return
        missing = list[int]()
        for number, one in ends.items():
            if number not in self.remaining or self.is_held(number):
                continue
            if self.has_ended(number):
                self.end(number, one)
            elif one.outcome == "busy" or (one.outcome != "stopped" and self.is_shared):
                # Another process holds it, or its record is not visible here yet.
                self.waiting.add(number)
            elif one.outcome != "stopped":
                missing.append(number)
        if end.error is not None:
            self.abort(end.error.exit_code, str(end.error))
        if missing:
            self.handle_loss(missing, DamagedError(_MISSING))
        left = [number for number in numbers if self.is_open(number) and number not in missing]
        if left and not self.is_ending:
            self.submit(left)

    def is_open(self, number: int) -> bool:
        """Return whether a run has to be executed."""
        return number in self.remaining and number not in self.waiting and not self.is_held(number)

    def is_held(self, number: int) -> bool:
        """Return whether the result of a run waits for another process."""
        return self.cells[number].run_key in self.nodes.held

    def has_ended(self, number: int) -> bool:
        """Return whether a run has a record, and not one to be made again."""
        version = self.store.version(self.cells[number].run_key)
        return version is not None and version != self.again.get(self.cells[number].run_key)

    def look_at_busy(self) -> None:
        """Look at the runs that other processes hold: they end, or become open."""
        now = time.monotonic()
        if now < self.looked + BUSY_SECONDS:
            return
        self.looked = now
        self.add_held()
        for number in sorted(self.waiting):
            key = self.cells[number].run_key
            if self.store.state(key) == "running":
                if not self.futures:
                    text = f"waiting for {self.store.owner(key)}: {self.cells[number].title}"
                    if text not in self.notes:
                        self.note(text)
                    return
                continue
            self.waiting.discard(number)
            if self.has_ended(number):
                self.end(number, CellEnd(outcome="elsewhere"))
            else:
                self.submit([number])

    # ---- losses, and ends before all is done

    def handle_loss(self, numbers: Iterable[int], error: Exception) -> None:
        """Submit the runs of a lost task again; end what is lost too often."""
        for number in [n for n in numbers if n in self.remaining and self.has_ended(n)]:
            self.end(number, CellEnd(outcome="made"))
        left = [number for number in numbers if self.is_open(number)]
        if self.is_ending or not left:
            return
        reason = _describe(error)
        for number in left:
            self.lost[number] = 0 if self.was_started(number, error) else self.lost[number] + 1
        left = [number for number in left if number in self.remaining]
        often = [number for number in left if self.lost[number] > MAX_CRASHES]
        text = f"were lost {MAX_CRASHES + 1} times, the last: {reason}"
        if often and (self.is_shared or not self.executed):
            self.abort(ResourceError.exit_code, f"the tasks of this study {text}")
            return
        # Other runs have returned.
        for number in often:
            claim = self.try_claim(number)
            if claim is not None:
                self.fail(number, claim, f"the tasks of this run {text}")
        left = [number for number in left if number in self.remaining]
        if left:
            self.note(f"{self.cells[left[0]].title}: {reason}; it is submitted again")
            # A run that crashes takes along the others of its task that have not returned.
            self.submit(left, one_by_one=not self.is_shared)

    def was_started(self, number: int, error: Exception) -> bool:
        """Return whether a process has started a run since it was submitted, as its lock says.

        A run that has crashed too many processes is recorded as failed.
        """
        key = self.cells[number].run_key
        if not self.is_shared or self.again.get(key, -1) == self.store.version(key):
            return False
        claim = self.try_claim(number)
        if claim is None:
            return True
        if claim.deaths <= MAX_CRASHES:
            claim.release(keep_deaths=True)
            return claim.deaths > 0
        last = f"the last: {_describe(error)}"
        tail = "\n".join(filter(None, (last, getattr(error, "tail", ""))))
        self.fail(number, claim, describe_crashes(claim, tail))
        return True

    def fail(self, number: int, claim: Claim, message: str) -> None:
        """Record a run as failed that cannot be executed."""
        self.note(f"{self.cells[number].title}: {message.splitlines()[0]}; it counts as failed")
        record_failure(claim, self.cells[number], message)
        self.end(number, CellEnd(outcome="elsewhere"))

    def try_claim(self, number: int) -> Claim | None:
        """Claim a run whose owner died; None if it is done, or another process resumes it."""
        cell = self.cells[number]
        for _ in range(CLAIM_ATTEMPTS):
            try:
                return self.store.claim(cell.run_key, run_identity(cell.run))
            except BusyError:
                # Another process may only look at the run.
                time.sleep(CLAIM_SECONDS)
        return None

    def stop(self) -> None:
        """Stop the tasks, and wait for the checkpoints of those that are executed."""
        self.display.note(STOPPING)
        begun = self.find_running()
        self.executor.stop()
        deadline = time.monotonic() + self.executor.stop_seconds
        while self.futures:
            self.settle(POLL_SECONDS)
            running = self.find_running()
            begun |= running
            # Schedulers report the ends of cancelled tasks late, or not at all.
            is_over = self.executor.is_remote and self.is_shared and not running
            if is_over or time.monotonic() > deadline:
                break
        if self.futures:
            self.executor.kill()
        self.forget_deaths(begun)

    def kill(self) -> None:
        """Kill the tasks on purpose, which is no crash of their runs."""
        begun = self.find_running()
        # Whatever is wrong with the scheduler: the process ends now.
        with suppress(Exception):
            self.executor.kill()
        self.forget_deaths(begun)
        self.display.close()
        self.nodes.close()

    def forget_deaths(self, begun: set[int]) -> None:
        """Clear the deaths of processes that were killed on purpose, once they have ended."""
        left, deadline = begun & set(self.remaining), time.monotonic() + KILL_SECONDS
        while left:
            running = {n for n in left if self.is_running(n)}
            for number in left - running:
                claim = self.try_claim(number)
                if claim is not None:
                    claim.release()
            left = running
            if time.monotonic() > deadline:
                return
            time.sleep(CLAIM_SECONDS)

    def find_running(self) -> set[int]:
        """Return the runs of our tasks whose locks are held; nodes with own folders hold none."""
        own = (number for some in self.futures.values() for number in some)
        return {number for number in own if self.is_running(number)}

    def is_running(self, number: int) -> bool:
        """Return whether a process holds the lock of a run."""
        return self.store.state(self.cells[number].run_key) == "running"

    def add_runs(self, numbers: tuple[int, ...], ends: Mapping[int, CellEnd], data: bytes) -> None:
        """Add the runs that a node returned to the store; none of them if one is damaged."""
        cells = {self.cells[number].run_key: self.cells[number] for number in numbers}
        keys = {self.cells[number].run_key: one for number, one in ends.items()}
        self.nodes.hold(data, cells, keys)
        for problem in self.add_held():
            self.note(f"{problem}; its result waits")

    def add_held(self) -> list[str]:
        """Add results to the store; return why others have to wait for another process."""
        numbers = {self.cells[number].run_key: number for number in self.remaining}
        ended, problems = self.nodes.add_held(self.again)
        for key, one in ended.items():
            self.end(numbers[key], one)
        return [f"{self.cells[numbers[key]].title}: {text}" for key, text in problems.items()]

    # ---- what is left, and what has ended

    def find_open_runs(self) -> None:
        """Find the remaining runs; report and reopen damaged ones.

        A finished run to be made again keeps its record until a worker begins it.
        """
        # Runs that are not checked yet count as remaining if a check aborts.
        for number, cell in enumerate(self.cells):
            record = self.store.check(cell.run_key, run_identity(cell.run), self.note_of(cell))
            if record is None:
                continue
            is_retried = self.retry_failed and record.status == "failed"
            if is_retried or self.lacks_network(cell, record):
                self.again[cell.run_key] = self.store.version(cell.run_key) or 0
                continue
            del self.remaining[number]
            self.count(cell, record)

    def lacks_network(self, cell: Cell, record: Record) -> bool:
        """Return whether an earlier study did not keep a network that the run reached."""
        taken = record.metrics.get("steps")
        reached = cell.run.training.steps if taken is None else taken
        return record.status == "done" and any(
            (step is None or step <= reached) and self.store.network(cell.run_key, step) is None
            for step in cell.kept_networks
        )

    def read_progress(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Yield the runs that are executed, each with the newest event of its log."""
        for future, numbers in list(self.futures.items()):
            for number in numbers if future.running() else ():
                if self.is_running(number):
                    cell = self.cells[number]
                    yield cell, self.store.latest(cell.run_key)

    def end(self, number: int, one: CellEnd) -> None:
        """Note that a run has ended, and show how, as its record says."""
        cell = self.remaining.pop(number, None)
        self.waiting.discard(number)
        record = None if cell is None else self.store.record(cell.run_key)
        if cell is None or record is None:
            return
        self.count(cell, record)
        if one.outcome == "made":
            self.executed += 1
            self.view.add_seconds(cell, one.seconds)
        self.view.estimate(self.remaining.values())
        if one.outcome != "made":
            return
        result = record.message.splitlines()[0] if record.message else ""
        if not result and record.headline is not None:
            result = f"{cell.run.task.metric} {record.headline:.4g}"
        text = f"{cell.title}: {record.status}, {result} ({one.seconds:.1f} s)"
        if record.status == "done":
            self.display.ended(text)
        else:
            self.note(text)

    def count(self, cell: Cell, record: Record) -> None:
        """Count a run that has ended."""
        self.view.counts[record.status] += 1
        if record.status == "done":
            self.view.add(cell, record.headline)
        self.publisher.add()

    def publish(self) -> None:
        """Show the results so far to the user, if it is time."""
        if self.remaining and not self.is_ending and (said := self.publisher.publish()):
            self.note(said)

    def note_of(self, cell: Cell) -> Callable[[str], None]:
        """Return a function that shows a message about a run."""
        return lambda text: self.note(f"{cell.title}: {text}")

    def note(self, text: str) -> None:
        """Show a message, and keep it."""
        self.notes.append(text)
        self.display.note(text)

    def abort(self, code: int, message: str) -> None:
        """End the study early; the first reason counts."""
        if not self.exit_code:
            self.exit_code, self.message = code, message


def prepare_sets(cells: Iterable[Cell], report: Callable[[str], None]) -> None:
    """Check the data of every run, each once; download or prepare what is not there.

    Args:
        cells: The runs.
        report: Called with a message for what takes long.

    Raises:
        QkvaryError: if data is not there, damaged, or not the expected one.
    """
    tasks = [cell.run.task for cell in cells]
    for task in {
        (type(task), task.data_fingerprint, getattr(task, "data", "")): task for task in tasks
    }.values():
        task.check_data(report)


def _describe(error: Exception) -> str:
    """Describe why a task was lost, in one line."""
    kind = [] if isinstance(error, QkvaryError | WorkerDiedError) else [type(error).__name__]
    said = str(error).strip().splitlines()
    printed = getattr(error, "tail", "").splitlines()
    return ": ".join([*kind, *said[-1:], *printed[-1:]])
