"""Executes the runs of a study as tasks of a cluster. Torch-free.

The scheduler places tasks and repeats those that were lost. The store says what is left of them: a
task that ends with open runs is submitted again. Where nodes do not see the store, tasks return
their finished runs, which are checked and added to it here.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from qkvary.storage.durable import atomic_write_file, make_directory, remove_file
from qkvary.storage.errors import BusyError, DamagedError, ResourceError
from qkvary.storage.file_systems import find_file_system
from qkvary.studies.running.executors.contract import Ending, Executor, Resources, Task
from qkvary.studies.running.ledger import CLAIM_SECONDS, Ledger
from qkvary.studies.running.messages import STOPPING, Job, WorkerMessage
from qkvary.studies.running.recording import run_identity
from qkvary.studies.running.run_archive import PackedRun, add_run, check_networks, read_runs
from qkvary.studies.running.work_loop import MAX_CRASHES

POLL_SECONDS = 0.25
"""Seconds to wait for the end of a task."""
CHECKPOINT_SECONDS = 60.0
"""Maximum of seconds to wait for the checkpoints of cancelled tasks."""
KILL_SECONDS = 2.0
"""Maximum of seconds to wait for the end of tasks that are killed."""
COUNT_SECONDS = 10.0
"""Seconds between two counts of the runs that are executed."""

_MARKERS = f"cluster-{socket.gethostname()}-"
"""The start of the names of markers; the process and the time follow."""
_ENDS = {"ended", "elsewhere"}
"""The messages after which the store has a record of the run."""
_MISSING = "its node says that it ended, but no result returned"


class ClusterTasks:
    """Tasks of a cluster that share the runs of a ledger."""

    def __init__(self, ledger: Ledger, job: Job, executor: Executor) -> None:
        """Prepare to execute the runs that are left.

        Args:
            ledger: The state of this call.
            job: All runs.
            executor: Submits and collects the tasks.
        """
        self._ledger, self._job, self._executor = ledger, job, executor
        self._left = 0
        """Tasks that have not ended."""
        self._lost: Counter[int] = Counter()
        """Tasks of each run that ended consecutively without having started it."""
        self._held: dict[int, tuple[PackedRun, WorkerMessage]] = {}
        """Finished runs that another process holds in the store, and the messages about them."""
        self._counted = 0.0
        self._is_shared = executor.shared_folder
        self._marker = job.store / f"{_MARKERS}{os.getpid()}-{time.time_ns()}"

    def supervise(self) -> None:
        """Execute all runs that are left, until a signal or an error ends it."""
        ledger = self._ledger
        make_directory(self._job.store)
        if self._is_shared:
            file_system = find_file_system(self._job.store)
            if file_system is not None and file_system.lock_problem:
                ledger.note(file_system.lock_problem)
            _remove_stale_markers(self._job.store)
            atomic_write_file(self._marker, b"")
        try:
            if not self._is_shared:
                check_networks(ledger.remaining.values())
            self._submit(ledger.remaining)
            while (self._left or self._held) and not ledger.is_ending:
                self._collect()
                self._add_held()
                ledger.publish_results()
                ledger.display.refresh()
            if self._left:
                self._cancel()
            self._add_held()
        except ConnectionError as error:
            ledger.abort(ResourceError.exit_code, f"the scheduler cannot be reached: {error}")
            with suppress(Exception):
                self._executor.cancel()
        except BaseException:
            # What ended the study may also keep its tasks from being cancelled.
            with suppress(Exception):
                self._executor.cancel()
            raise
        finally:
            self._executor.close()
            remove_file(self._marker)

    def kill(self) -> None:
        """Kill the tasks on purpose, which is no crash of their runs."""
        begun = self._find_running(self._ledger.remaining)
        # Whatever is wrong with the scheduler: the process ends now.
        with suppress(Exception):
            self._executor.cancel(now=True)
        self._forget_deaths(begun)
        remove_file(self._marker)

    def _collect(self) -> None:
        """Handle the tasks that have ended."""
        if not self._left:
            time.sleep(POLL_SECONDS)
            return
        endings = self._executor.collect(POLL_SECONDS)
        if endings:
            self._count_parallel()
        for ending in endings:
            self._handle(ending)

    def _submit(self, numbers: Iterable[int], *, one_by_one: bool = False) -> None:
        tasks = list(self._group(numbers, 1 if one_by_one else self._executor.runs_per_task))
        for needs in dict.fromkeys(task.resources for task in tasks):
            obstacle = self._executor.find_obstacle(needs)
            if obstacle and obstacle not in self._ledger.notes:
                self._ledger.note(obstacle)
        self._left += len(tasks)
        self._executor.submit(tasks)

    def _group(self, numbers: Iterable[int], size: int) -> Iterator[Task]:
        """Yield tasks of at most ``size`` runs with the same needs."""
        groups: dict[Resources, list[int]] = {}
        for number in numbers:
            groups.setdefault(self._executor.needs(self._ledger.cells[number]), []).append(number)
        for resources, group in groups.items():
            for first in range(0, len(group), size):
                some = tuple(group[first : first + size])
                cells = tuple(self._ledger.cells[number] for number in some)
                yield Task(
                    numbers=some,
                    job=replace(self._job, cells=cells),
                    resources=resources,
                    marker=str(self._marker) if self._is_shared else None,
                )

    def _handle(self, ending: Ending) -> None:
        self._left -= 1
        if ending.runs:
            ending = self._add_runs(ending)
        numbers = ending.task.numbers
        missing = list[int]()
        for relative in ending.messages:
            message = replace(relative, cell=numbers[relative.cell])
            if self._is_shared or message.kind not in _ENDS:
                self._ledger.handle(message)
            elif message.cell in self._held:
                self._held[message.cell] = self._held[message.cell][0], message
            elif self._has_returned(message.cell):
                self._ledger.handle(self._confirm(message))
            else:
                missing.append(message.cell)
        left = self._open_runs(numbers)
        lost, error = (left, ending.error) if ending.error else (self._open_runs(missing), _MISSING)
        if lost and not self._ledger.is_ending:
            self._check(lost, error)
        left = self._open_runs(left)
        if left and not self._ledger.is_ending:
            # A run that crashes takes along the others of its task that have not returned.
            self._submit(left, one_by_one=bool(lost) and not self._is_shared)

    def _open_runs(self, numbers: Iterable[int]) -> list[int]:
        """Return the runs that have to be executed."""
        remaining = self._ledger.remaining
        return [number for number in numbers if number in remaining and number not in self._held]

    def _has_returned(self, number: int) -> bool:
        """Return whether the store has the result of a run, and not one to be made again."""
        state = self._ledger.store.state(self._ledger.cells[number].run_key)
        return state == "done" and not self._ledger.is_untouched(number)

    def _confirm(self, message: WorkerMessage) -> WorkerMessage:
        """Return a message with the status that the store has."""
        record = self._ledger.store.record(self._ledger.cells[message.cell].run_key)
        if record is None or message.kind != "ended" or record.status == message.status:
            return message
        return replace(message, status=record.status, text=record.message)

    def _add_runs(self, ending: Ending) -> Ending:
        """Add the runs that a task returned to the store; return its ending.

        If one of them is damaged, none of them counts. One that another process holds is kept.
        """
        ledger, task = self._ledger, ending.task
        try:
            runs = _read_results(ending)
        except DamagedError as error:
            return Ending(task=task, error=str(error))
        numbers = {ledger.cells[number].run_key: number for number in task.numbers}
        for run in runs:
            number = numbers[run.record.run_key]
            try:
                add_run(run, ledger.store, again=ledger.again.get(run.record.run_key))
            except BusyError as error:
                ledger.note(f"{ledger.cells[number].title}: {error}; its result waits")
                self._held[number] = run, WorkerMessage(kind="elsewhere", cell=number)
        return ending

    def _add_held(self) -> None:
        """Add the results that had to wait, unless the other process finished the runs."""
        ledger = self._ledger
        for number, (run, message) in list(self._held.items()):
            with suppress(BusyError):
                key = run.record.run_key
                added = add_run(run, ledger.store, again=ledger.again.get(key))
                del self._held[number]
                ledger.handle(
                    self._confirm(message if added else replace(message, kind="elsewhere"))
                )

    def _check(self, left: list[int], error: str) -> None:
        """Report a lost task; end what is lost too often."""
        ledger = self._ledger
        for number in left:
            self._lost[number] = 0 if self._was_started(number) else self._lost[number] + 1
        often = [number for number in left if self._lost[number] > MAX_CRASHES]
        if not often:
            ledger.note(f"{ledger.cells[left[0]].title}: {error}; it is submitted again")
        elif self._is_shared:
            ledger.abort(ResourceError.exit_code, f"the cluster starts no run: {error}")
        elif not ledger.executed:
            ledger.abort(ResourceError.exit_code, self._describe_loss(often[0], error))
        else:
            # Other runs have returned.
            for number in often:
                self._give_up(number, error)

    def _was_started(self, number: int) -> bool:
        """Return whether a process is known to have started a run since it was submitted."""
        if not self._is_shared or self._ledger.is_untouched(number):
            return False
        claim = self._ledger.try_claim(number)
        if claim is None:
            return True
        claim.release(keep_deaths=True)
        return claim.deaths > 0

    def _give_up(self, number: int, error: str) -> None:
        """Record a run as failed whose tasks are lost."""
        claim = self._ledger.try_claim(number)
        if claim is not None:
            message = self._describe_loss(number, error)
            self._ledger.note(f"{self._ledger.cells[number].title}: {message}")
            self._ledger.record_failure(number, claim, message)

    def _describe_loss(self, number: int, error: str) -> str:
        return f"the tasks of this run were lost {self._lost[number]} times, the last: {error}"

    def _cancel(self) -> None:
        """Cancel the tasks, and wait for the checkpoints of those that are executed."""
        ledger = self._ledger
        ledger.display.note(STOPPING)
        begun = self._find_running(ledger.remaining)
        self._executor.cancel()
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        open_runs = set(ledger.remaining)
        while self._left and open_runs and time.monotonic() < deadline:
            for ending in self._executor.collect(POLL_SECONDS):
                self._handle(ending)
            open_runs &= set(ledger.remaining)
            if self._is_shared:
                open_runs = self._find_running(open_runs)
                begun |= open_runs
        if self._left and open_runs:
            self._executor.cancel(now=True)
        self._forget_deaths(begun)

    def _forget_deaths(self, begun: set[int]) -> None:
        """Clear the deaths of processes that were killed on purpose, once they have ended."""
        left, deadline = begun & set(self._ledger.remaining), time.monotonic() + KILL_SECONDS
        while left:
            running = self._find_running(left)
            for number in left - running:
                claim = self._ledger.try_claim(number)
                if claim is not None:
                    claim.release()
            left = running
            if not left or time.monotonic() > deadline:
                return
            time.sleep(CLAIM_SECONDS)

    def _count_parallel(self) -> None:
        """Count the runs that are executed, for the time that is left."""
        now = time.monotonic()
        if not self._is_shared:
            seconds = self._ledger.estimate.total_seconds / (now - self._ledger.began)
            self._ledger.parallel = max(1, round(seconds))
        elif not self._counted or now > self._counted + COUNT_SECONDS:
            self._counted = now
            self._ledger.parallel = max(1, len(self._find_running(self._ledger.remaining)))

    def _find_running(self, numbers: Iterable[int]) -> set[int]:
        """Return the runs whose locks are held; nodes that do not see the store hold none."""
        return {number for number in numbers if self._is_running(number)}

    def _is_running(self, number: int) -> bool:
        return self._ledger.store.state(self._ledger.cells[number].run_key) == "running"


def _read_results(ending: Ending) -> list[PackedRun]:
    runs = list(read_runs(ending.runs, "the result of a task"))
    expected = {cell.run_key: run_identity(cell.run) for cell in ending.task.job.cells}
    if any(expected.get(run.record.run_key) != run.config for run in runs):
        raise DamagedError("the result of a task has a run that is not one of the task")
    return runs


def _remove_stale_markers(store: Path) -> None:
    """Remove the markers of runners of this machine that were killed."""
    for path in store.glob(f"{_MARKERS}*"):
        pid = path.name.removeprefix(_MARKERS).partition("-")[0]
        if not pid.isdecimal():
            continue
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            remove_file(path)
        except PermissionError:
            continue
