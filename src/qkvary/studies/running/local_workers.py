"""Executes runs in worker processes of this machine, and replaces those that crash. Torch-free."""

import os
import selectors
import signal

from qkvary.storage.errors import ResourceError
from qkvary.studies.running.ledger import Ledger, describe_crashes
from qkvary.studies.running.live import WorkerLine
from qkvary.studies.running.messages import STOPPING, Job, WorkerMessage
from qkvary.studies.running.work_loop import MAX_CRASHES
from qkvary.studies.running.worker_process import WorkerProcess, describe_end

MAX_FAILED_STARTS = 3
"""After this many consecutive workers that crash before they are ready, the runner aborts."""


class LocalWorkers:
    """Worker processes that share the runs of a ledger."""

    def __init__(self, ledger: Ledger, job: Job, *, workers: int | None, module: str) -> None:
        """Prepare to execute the runs that are left.

        Args:
            ledger: The state of the runs.
            job: All runs.
            workers: The number of processes; None for one per processor.
            module: The program of the workers.
        """
        self._ledger, self._job, self._module = ledger, job, module
        self._wanted = workers or os.cpu_count() or 1
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = self._started = 0
        self._stop_announced = False

    def supervise(self) -> None:
        """Execute all runs that are left, until a signal or an error ends it."""
        try:
            for _ in range(min(self._wanted, len(self._ledger.remaining))):
                self._start_worker()
            while self._workers:
                self._poll_workers()
                self._ledger.publish_results()
        except BaseException:
            for worker in self._workers:
                worker.kill()
            raise
        finally:
            self._selector.close()

    def kill(self) -> None:
        """Kill the workers on purpose, which is no crash of their runs."""
        for worker in self._workers:
            worker.kill()
            claim = None if worker.cell is None else self._ledger.try_claim(worker.cell)
            if claim is not None:
                claim.release()

    def _start_worker(self) -> None:
        number = self._started % self._wanted + 1
        taken = {worker.number for worker in self._workers}
        while number in taken:
            number += 1
        self._started += 1
        worker = WorkerProcess(number, self._module, self._job)
        self._workers.append(worker)
        self._selector.register(worker.message_pipe, selectors.EVENT_READ, (worker, "message"))
        self._selector.register(worker.tail_pipe, selectors.EVENT_READ, (worker, "tail"))
        self._ledger.view.workers[number] = WorkerLine()

    def _poll_workers(self) -> None:
        """Handle messages of the workers, for at most a quarter of a second."""
        for key, _events in self._selector.select(timeout=0.25):
            worker, pipe = key.data
            if worker not in self._workers:
                continue
            if pipe == "tail":
                if not worker.read_tail():
                    self._selector.unregister(worker.tail_pipe)
                continue
            message = worker.read_messages()
            if message is None:
                self._reap(worker)
                continue
            for item in message:
                self._handle_message(worker, item)
        ledger = self._ledger
        ledger.parallel = len(self._workers)
        if ledger.signal and not self._stop_announced:
            self._stop_announced = True
            ledger.display.note(STOPPING)
        if ledger.is_ending:
            for worker in self._workers:
                worker.stop()
        ledger.display.refresh()

    def _reap(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.message_pipe)
        if worker.tail_pipe in self._selector.get_map():
            self._selector.unregister(worker.tail_pipe)
            while worker.read_tail():
                pass
        code = worker.wait()
        self._workers.remove(worker)
        self._ledger.view.workers.pop(worker.number, None)
        if self._ledger.is_ending:
            return
        if code == 0:
            # The last worker left a run to another process, which may die.
            if self._ledger.remaining and not self._workers:
                self._start_worker()
            return
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            printed = worker.tail.splitlines()
            last = printed[-1] if printed else "no output"
            message = f"workers crash at start ({describe_end(code)}): {last}"
            self._ledger.abort(ResourceError.exit_code, message)
            return
        # 143: this worker alone received SIGTERM and wrote a checkpoint.
        if worker.cell is not None and code != 128 + signal.SIGTERM:
            self._record_crash(worker, worker.cell, describe_end(code))
        if self._ledger.remaining:
            self._start_worker()

    def _record_crash(self, worker: WorkerProcess, number: int, end: str) -> None:
        """Report a crash, and record the run as failed after too many."""
        cell = self._ledger.cells[number]
        crash = f"{cell.title}: worker {worker.number} (process {worker.pid}) crashed with {end}"
        claim = self._ledger.try_claim(number)
        if claim is None or claim.deaths <= MAX_CRASHES:
            if claim is not None:
                claim.release(keep_deaths=True)
            self._ledger.note(f"{crash}; another worker resumes the run")
            return
        self._ledger.note(f"{crash}, the {claim.deaths}th time; the run counts as failed")
        tail = f"\n{worker.tail}" if worker.tail else ""
        message = describe_crashes(claim, f"the last with {end}{tail}")
        self._ledger.record_failure(number, claim, message)

    def _handle_message(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        lines = self._ledger.view.workers
        line = lines.get(worker.number, WorkerLine())
        if message.kind == "ready":
            worker.ready = True
            line.title = "ready"
        elif message.kind == "started":
            worker.cell = message.cell
            lines[worker.number] = WorkerLine(title=self._ledger.cells[message.cell].title)
        elif message.kind == "progress":
            line.step, line.steps, line.loss = message.step, message.steps, message.loss
        elif message.kind == "waiting":
            self._wait_for(worker, message)
        elif message.kind == "given_up":
            # The end of one of ours tells more, and is still to be noticed.
            if not any(one.cell == message.cell for one in self._workers):
                self._ledger.handle(message)
        else:
            if message.kind == "ended":
                worker.cell = None
            self._ledger.handle(message)

    def _wait_for(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        """Show that other processes hold all remaining runs; report those of other runners."""
        if any(f"process {one.pid} on" in message.text for one in self._workers):
            self._ledger.view.workers[worker.number] = WorkerLine(title="waiting for the last runs")
            return
        title = f"waiting for {message.text}: {self._ledger.cells[message.cell].title}"
        self._ledger.view.workers[worker.number] = WorkerLine(title=title)
        self._ledger.note(f"worker {worker.number} is {title}")
