"""Executes a task on a node of a cluster: the work of a local worker, without its runner."""

import os
import socket
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from qkvary.storage.durable import make_directory, remove_dir
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, QkvaryError, UsageError
from qkvary.studies.running.executors.contract import Ending, Resources, Task
from qkvary.studies.running.ledger import Ledger
from qkvary.studies.running.messages import Job, WorkerMessage
from qkvary.studies.running.recording import make_record, run_identity
from qkvary.studies.running.run_archive import find_excess, pack_results
from qkvary.studies.running.signals import handle_endings
from qkvary.studies.running.store import Store
from qkvary.studies.running.work_loop import TrainFunction, Worker
from qkvary.studies.running.worker import train_cell
from qkvary.studies.study import Cell
from qkvary.training.allocator import keep_freed_memory
from qkvary.training.memory import training_bytes

PROCESS_BYTES = 2**30
"""Memory of a process with torch and the data of its task, beside weights and activations."""
DEVICE_BYTES = 2**32
"""Least main memory of a run on a device: libraries, and copies of its state for checkpoints."""
MEMORY_UNIT = 2**28
"""Memory is rounded up to this, so that variants that differ little can share a job."""
_ABOUT_RUNS = {"note", "ended", "elsewhere", "given_up", "fatal"}

Returned = tuple[list[bytes], bytes]
"""The encoded result of an execution: the messages about its runs, and the runs that the store of
the study lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A task in the form that schedulers carry to a node; call it there."""

    job: bytes
    """The runs, encoded."""
    marker: str | None
    """A file in the store; None if the node does not see the store."""
    folder: str
    """The name of the folder of unfinished runs, on a node that does not see the store."""
    train_run: TrainFunction = train_cell
    """Trains one run."""

    @classmethod
    def of(cls, task: Task, train_run: TrainFunction) -> "Execution":
        """Return the execution of a task."""
        return cls(
            job=task.job.to_line(),
            marker=task.marker,
            folder=folder_name(task.job.store),
            train_run=train_run,
        )

    def __call__(self) -> Returned:
        """Execute the runs.

        A node that does not see the store uses a store of its own, and returns the finished runs.
        At SIGINT or SIGTERM the current run writes a checkpoint, and the others stay open.
        """
        messages, runs = list[bytes](), b""
        with _report_errors(messages):
            job = self._find_store(Job.from_line(self.job))
            with _report_errors(messages):
                self._work(job, messages)
            if self.marker is None:
                runs = _take_runs(job)
        return messages, runs

    def _work(self, job: Job, messages: list[bytes]) -> None:
        def send(message: WorkerMessage) -> None:
            if self.marker is None and message.kind == "given_up":
                message = _record_crashes(job, message)
            if message.kind in _ABOUT_RUNS:
                messages.append(message.to_line())

        worker = Worker(job, self.train_run, send)
        keep_freed_memory()
        with handle_endings(lambda _number, _frame: worker.stop()):
            worker.work()

    def _find_store(self, job: Job) -> Job:
        """Return the job with the store that this node uses."""
        if self.marker is None:
            return replace(job, store=_scratch_folder(self.folder), again={})
        if not Path(self.marker).exists():
            raise UsageError(
                f"{job.store} is not the folder of this study: expected a folder that all nodes "
                "see under the same path, give one with --out, or --no-shared-folder"
            )
        return job


@contextmanager
def _report_errors(messages: list[bytes]) -> Generator[None]:
    """Turn an error that ends the study into a message."""
    try:
        yield
    except QkvaryError as error:
        text = f"{error} (on {socket.gethostname()})"
        messages.append(WorkerMessage(kind="fatal", text=text, code=error.exit_code).to_line())


def folder_name(store: Path) -> str:
    """Return the name of the folder of unfinished runs on the nodes of a store of this machine."""
    place = f"{socket.gethostname()}:{store.absolute()}"
    return f"qkvary-{os.getuid()}-{sha256(place.encode()).hexdigest()[:16]}"


def _scratch_folder(name: str) -> Path:
    """Return the folder of unfinished runs on this node, which no other user can write.

    Raises:
        UsageError: if it belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / name
    make_directory(folder)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user: set TMPDIR to a folder of yours")
    folder.chmod(0o700)
    return folder


def _record_crashes(job: Job, message: WorkerMessage) -> WorkerMessage:
    """Record a run as failed that crashed too many processes of this node."""
    ledger = Ledger(job.cells, Store(job.store))
    ledger.handle(message)
    record = ledger.store.record(ledger.cells[message.cell].run_key)
    if record is None:
        return message
    return replace(message, kind="ended", status=record.status, text=record.message)


def _take_runs(job: Job) -> bytes:
    """Return the finished runs of a job, and remove them from this node.

    A damaged run is opened again, and the next process there repeats it. One that is too large
    returns as failed.
    """
    store, done = Store(job.store), list[str]()
    for cell in job.cells:
        if store.state(cell.run_key) == "done":
            # Another process of this node may hold it.
            with suppress(BusyError):
                _prepare_result(store, cell)
        if store.state(cell.run_key) == "done":
            done.append(cell.run_key)
    runs = pack_results(store, done)
    for key in done:
        remove_dir(store.directory(key))
    return runs


def _prepare_result(store: Store, cell: Cell) -> None:
    """Open a run again if it is damaged; record it as failed if it is too large for a result."""
    key, excess = cell.run_key, None
    if store.find_damage(key) is None:
        excess = find_excess(store, key)
        if excess is None:
            return
    again = store.version(key) if excess else None
    claim = store.claim(key, run_identity(cell.run), again=again)
    if claim is None:
        return
    if excess is None:
        claim.release()
    else:
        claim.finish(make_record(cell, status="failed", started=now(), message=excess))


def read_ending(task: Task, load: Callable[[], Returned]) -> Ending:
    """Return the ending of a task.

    Args:
        task: The task.
        load: Returns what its execution returned, or raises the scheduler's error.

    Raises:
        ConnectionError: if this process lost the scheduler, which is no end of a task.
    """
    try:
        lines, runs = load()
        messages = tuple(map(WorkerMessage.from_line, lines))
    except ConnectionError:
        raise
    # Schedulers carry results as pickles, and a damaged pickle can raise any exception.
    except Exception as error:  # noqa: BLE001
        said = str(error).strip().splitlines()[-1:]
        return Ending(task=task, error=": ".join([type(error).__name__, *said]))
    return Ending(task=task, messages=messages, runs=runs)


def needed_resources(cell: Cell, gpu_share: float) -> Resources:
    """Return what a run needs of a node.

    Args:
        cell: The run.
        gpu_share: GPUs of a run on a device.
    """
    run = cell.run
    on_cpu = run.device == "cpu"
    memory = max(PROCESS_BYTES + training_bytes(run), 0 if on_cpu else DEVICE_BYTES)
    return Resources(
        cores=run.threads,
        gpus=0.0 if on_cpu else gpu_share,
        memory_bytes=-(-memory // MEMORY_UNIT) * MEMORY_UNIT,
    )
