"""The state of one call of the runner: runs that are left, and runs that ended. Torch-free.

It does not know who executes the runs: worker processes of this machine, or tasks of a cluster.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError
from qkvary.studies.running.estimates import TimeEstimate
from qkvary.studies.running.live import Display, ProgressView
from qkvary.studies.running.messages import WorkerMessage
from qkvary.studies.running.publishing import Publisher
from qkvary.studies.running.recording import make_record, run_identity
from qkvary.studies.running.records import Record
from qkvary.studies.running.store import Claim, Store
from qkvary.studies.study import Cell

CLAIM_ATTEMPTS, CLAIM_SECONDS = 20, 0.01
"""Attempts to claim a run after a crash, and seconds between them."""


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


class Ledger:
    """The runs of one call of ``run_study``: those that are left, and how the others ended."""

    def __init__(self, cells: Sequence[Cell], store: Store) -> None:
        """Count all runs as left.

        Args:
            cells: The runs.
            store: The store that holds those that are done.
        """
        self.store = store
        # Several cells may share one run.
        self.cells = tuple({cell.run_key: cell for cell in cells}.values())
        self.remaining: dict[int, Cell] = dict(enumerate(self.cells))
        self.view = ProgressView(name="", total=len(self.cells))
        self.display = Display()
        self.publisher = Publisher()
        self.estimate = TimeEstimate()
        self.notes: list[str] = []
        self.again: dict[str, int] = {}
        """Versions of the records of runs to be made again, by run key."""
        self.executed = self.signal = 0
        self.parallel = 1
        """Runs that are executed at once."""
        self.exit_code, self.message = 0, ""
        self.began = time.monotonic()

    @property
    def is_ending(self) -> bool:
        """Whether a signal or an error ends the study early."""
        return bool(self.signal or self.exit_code)

    def note(self, text: str) -> None:
        """Show a message, and keep it."""
        self.notes.append(text)
        self.display.note(text)

    def abort(self, code: int, message: str) -> None:
        """End the study early; the first reason counts."""
        if not self.exit_code:
            self.exit_code, self.message = code, message

    def publish_results(self) -> None:
        """Show the results so far to the user, if it is time."""
        if self.remaining and not self.signal:
            problem = self.publisher.publish()
            if problem:
                self.note(problem)

    # ---- what is left

    def find_open_runs(self, *, retry_failed: bool) -> None:
        """Find the remaining runs; report and reopen damaged ones.

        A finished run to be made again keeps its record until a worker begins it.
        """
        # Runs that are not checked yet count as remaining if a check aborts.
        for number, cell in enumerate(self.cells):
            status = self._check_run(cell, retry_failed)
            if status is not None:
                del self.remaining[number]
                self._count(number, status)

    def _check_run(self, cell: Cell, retry_failed: bool) -> str | None:
        """Return the status of a finished run, or None if it must be executed."""
        key = cell.run_key
        if self.store.state(key) != "done":
            return None
        version, problem = self.store.version(key), self.store.find_damage(key)
        record = None if problem else self.store.record(key)
        if record is not None and version is not None:
            is_retried = retry_failed and record.status == "failed"
            if is_retried or self._lacks_network(cell, record):
                self.again[key] = version
                return None
        if problem is not None or not self.store.is_clean(key):
            with suppress(BusyError):
                claim = self.store.claim(key, run_identity(cell.run))
                if claim is not None:
                    for warning in claim.warnings:
                        self.note(f"{cell.title}: {warning}")
                    claim.release()
                    return None
        return record.status if record else None

    def _lacks_network(self, cell: Cell, record: Record) -> bool:
        """Return whether an earlier study did not keep a network that the run reached."""
        taken = record.metrics.get("steps")
        reached = cell.run.training.steps if taken is None else taken
        return record.status == "done" and any(
            (step is None or step <= reached) and self.store.network(cell.run_key, step) is None
            for step in cell.kept_networks
        )

    def is_untouched(self, number: int) -> bool:
        """Return whether a run is to be made again, and no worker has begun it."""
        key = self.cells[number].run_key
        return key in self.again and self.again[key] == self.store.version(key)

    # ---- how runs end

    def handle(self, message: WorkerMessage) -> None:
        """Handle a message about a run that was made, or will not be."""
        if message.kind == "note":
            self.note(f"{self.cells[message.cell].title}: {message.text}")
        elif message.kind == "fatal":
            self.abort(message.code, message.text)
        elif message.kind == "elsewhere" and message.cell in self.remaining:
            record = self.store.record(self.cells[message.cell].run_key)
            self._end(message.cell, record.status if record else "done")
        elif message.kind == "given_up":
            claim = self.try_claim(message.cell)
            if claim is not None:
                title = self.cells[message.cell].title
                self.note(f"{title} crashed too often; it counts as failed")
                self.record_failure(message.cell, claim, describe_crashes(claim, message.text))
            elif record := self.store.record(self.cells[message.cell].run_key):
                # Another runner recorded it.
                self._end(message.cell, record.status)
        elif message.kind == "ended":
            self.executed += 1
            self._end(message.cell, message.status, message)

    def try_claim(self, number: int) -> Claim | None:
        """Claim a run whose owner died; None if it is done, or another process resumes it."""
        cell = self.cells[number]
        for _ in range(CLAIM_ATTEMPTS):
            try:
                return self.store.claim(cell.run_key, run_identity(cell.run))
            except BusyError:
                # A worker may only look at the run, or be about to give it up.
                time.sleep(CLAIM_SECONDS)
        return None

    def record_failure(self, number: int, claim: Claim, message: str) -> None:
        """Record a run as failed that cannot be executed."""
        cell = self.cells[number]
        claim.finish(make_record(cell, status="failed", started=now(), message=message))
        self._end(number, "failed")

    def _count(self, number: int, status: str) -> None:
        self.view.counts[status] += 1
        if status == "done" and (record := self.store.record(self.cells[number].run_key)):
            self.view.add(self.cells[number], record.headline)
        self.publisher.add()

    def _end(self, number: int, status: str, message: WorkerMessage | None = None) -> None:
        """Record that a run has ended; ``message`` is that of its worker, if it was ours."""
        if self.remaining.pop(number, None) is None:
            return
        cell = self.cells[number]
        self._count(number, status)
        if message is not None:
            self.estimate.add(cell, message.seconds)
        elapsed = time.monotonic() - self.began
        self.view.runs_per_minute = 60.0 * self.executed / elapsed if self.executed else None
        left = tuple(self.remaining.values())
        self.view.seconds_left = self.estimate.seconds_left(left, self.parallel)
        if message is not None:
            self._show_end(cell, message)

    def _show_end(self, cell: Cell, message: WorkerMessage) -> None:
        result = message.text.splitlines()[0] if message.text else ""
        if not result and message.loss is not None:
            result = f"{cell.run.task.metric} {message.loss:.4g}"
        text = f"{cell.title}: {message.status}, {result} ({message.seconds:.1f} s)"
        if message.status == "done":
            self.display.ended(text)
        else:
            self.note(text)

    def summary(self, *, strict: bool) -> RunSummary:
        """Return the outcome.

        Args:
            strict: Whether failed and diverged runs make the exit code 1.
        """
        counts = self.view.counts
        troubled = strict and (counts["failed"] or counts["diverged"])
        if self.signal and self.remaining:
            self.exit_code = 128 + self.signal
        return RunSummary(
            planned=len(self.cells),
            done=counts["done"],
            failed=counts["failed"],
            diverged=counts["diverged"],
            missing=len(self.remaining),
            executed=self.executed,
            seconds=time.monotonic() - self.began,
            exit_code=self.exit_code or (1 if troubled else 0),
            message=self.message,
            notes=tuple(self.notes),
        )


def describe_crashes(claim: Claim, reason: str) -> str:
    """Describe the crashes of a run; ``reason`` is that of the last one, if it is known."""
    return ", ".join(filter(None, (f"this run crashed {claim.deaths} workers", reason)))
