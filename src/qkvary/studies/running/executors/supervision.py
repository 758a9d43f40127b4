"""Executes the runs of a study as tasks of a cluster. Torch-free.

The scheduler places tasks and repeats those that were lost. The store says what is left of them: a
task that ends with open runs is submitted again.
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from qkvary.storage.durable import atomic_write_file, make_directory, remove_file
from qkvary.storage.errors import ResourceError
from qkvary.storage.file_systems import find_file_system
from qkvary.studies.running.executors.contract import Ending, Executor, Resources, Task
from qkvary.studies.running.ledger import Ledger
from qkvary.studies.running.messages import STOPPING, Job
from qkvary.studies.running.work_loop import MAX_CRASHES

POLL_SECONDS = 0.25
"""Seconds to wait for the end of a task."""
CHECKPOINT_SECONDS = 60.0
"""Maximum of seconds to wait for the checkpoints of cancelled tasks."""


class ClusterTasks:
    """Tasks of a cluster that share the runs of a ledger."""

    def __init__(self, ledger: Ledger, job: Job, executor: Executor) -> None:
        """Prepare to execute the runs that are left.

        Args:
            ledger: The books of the runs.
            job: All runs.
            executor: Submits and collects the tasks.
        """
        self._ledger, self._job, self._executor = ledger, job, executor
        self._left = 0
        """Tasks that have not ended."""
        self._lost: Counter[int] = Counter()
        """Tasks of each run that ended consecutively without having started it."""
        name = f"cluster-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._marker = job.store / name

    def supervise(self) -> None:
        """Execute all runs that are left, until a signal or an error ends it."""
        ledger = self._ledger
        make_directory(self._job.store)
        file_system = find_file_system(self._job.store)
        if file_system is not None and file_system.lock_problem:
            ledger.note(file_system.lock_problem)
        atomic_write_file(self._marker, b"")
        try:
            self._submit(ledger.remaining)
            while self._left and not ledger.is_ending:
                for ending in self._executor.collect(POLL_SECONDS):
                    self._handle(ending)
                ledger.publish_results()
                ledger.display.refresh()
            if self._left:
                self._cancel()
        finally:
            self._executor.close()
            remove_file(self._marker)

    def kill(self) -> None:
        """Do not wait for the cancelled tasks."""
        remove_file(self._marker)

    def _submit(self, numbers: Iterable[int]) -> None:
        tasks = list(self._group(numbers))
        for needs in dict.fromkeys(task.resources for task in tasks):
            obstacle = self._executor.find_obstacle(needs)
            if obstacle and obstacle not in self._ledger.notes:
                self._ledger.note(obstacle)
        self._left += len(tasks)
        self._executor.submit(tasks)

    def _group(self, numbers: Iterable[int]) -> Iterator[Task]:
        """Yield tasks of runs with the same needs."""
        groups: dict[Resources, list[int]] = {}
        for number in numbers:
            groups.setdefault(self._executor.needs(self._ledger.cells[number]), []).append(number)
        size = self._executor.runs_per_task
        for resources, group in groups.items():
            for first in range(0, len(group), size):
                some = tuple(group[first : first + size])
                cells = tuple(self._ledger.cells[number] for number in some)
                yield Task(
                    numbers=some,
                    job=replace(self._job, cells=cells),
                    resources=resources,
                    marker=str(self._marker),
                )

    def _handle(self, ending: Ending) -> None:
        self._left -= 1
        numbers = ending.task.numbers
        for message in ending.messages:
            self._ledger.handle(replace(message, cell=numbers[message.cell]))
        left = [number for number in numbers if number in self._ledger.remaining]
        if left and ending.error and not self._ledger.is_ending:
            self._check(left, ending.error)
        if left and not self._ledger.is_ending:
            self._submit(left)

    def _check(self, left: list[int], error: str) -> None:
        """Report a lost task; abort if none of its runs ever starts."""
        for number in left:
            if self._ledger.is_untouched(number):
                self._lost[number] += 1
                continue
            claim = self._ledger.try_claim(number)
            started = claim is None or claim.deaths
            if claim is not None:
                claim.release(keep_deaths=True)
            self._lost[number] = 0 if started else self._lost[number] + 1
        if max(self._lost.values()) > MAX_CRASHES:
            self._ledger.abort(ResourceError.exit_code, f"the cluster starts no run: {error}")
        else:
            title = self._ledger.cells[left[0]].title
            self._ledger.note(f"{title}: {error}; it is submitted again")

    def _cancel(self) -> None:
        """Cancel the tasks, and wait for the checkpoints of those that are executed."""
        ledger = self._ledger
        ledger.display.note(STOPPING)
        self._executor.cancel()
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        open_runs = set(ledger.remaining)
        while self._left and open_runs and time.monotonic() < deadline:
            for ending in self._executor.collect(POLL_SECONDS):
                self._handle(ending)
            is_running = {n for n in open_runs if self._is_running(n)}
            open_runs = is_running & set(ledger.remaining)

    def _is_running(self, number: int) -> bool:
        return self._ledger.store.state(self._ledger.cells[number].run_key) == "running"
