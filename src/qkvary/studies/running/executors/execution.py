"""Executes a task on a node of a cluster: the work of a local worker, without its runner."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.studies.running.executors.contract import Resources, Task
from qkvary.studies.running.messages import Job, WorkerMessage
from qkvary.studies.running.signals import handle_endings
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A task in the form that schedulers carry to a node; call it there."""

    job: bytes
    """The runs, encoded."""
    marker: str
    """A file in the store."""
    train_run: TrainFunction = train_cell
    """Trains one run."""

    @classmethod
    def of(cls, task: Task, train_run: TrainFunction) -> "Execution":
        """Return the execution of a task."""
        return cls(job=task.job.to_line(), marker=task.marker, train_run=train_run)

    def __call__(self) -> list[bytes]:
        """Execute the runs; return the messages about them, encoded.

        At SIGINT or SIGTERM the current run writes a checkpoint, and the others stay open.
        """
        return [message.to_line() for message in self._execute()]

    def _execute(self) -> Sequence[WorkerMessage]:
        job, messages = Job.from_line(self.job), list[WorkerMessage]()

        def send(message: WorkerMessage) -> None:
            if message.kind in _ABOUT_RUNS:
                messages.append(message)

        worker = Worker(job, self.train_run, send)
        keep_freed_memory()
        try:
            self._check_folder(job)
            with handle_endings(lambda _number, _frame: worker.stop()):
                worker.work()
        except QkvaryError as error:
            send(WorkerMessage(kind="fatal", text=str(error), code=error.exit_code))
        return messages

    def _check_folder(self, job: Job) -> None:
        if not Path(self.marker).exists():
            raise UsageError(
                f"{job.store} on {socket.gethostname()} is not the folder of this study: expected "
                "a folder that all nodes see under the same path, give one with --out"
            )


def read_messages(lines: Sequence[bytes]) -> tuple[WorkerMessage, ...]:
    """Return the messages that an execution returned."""
    return tuple(map(WorkerMessage.from_line, lines))


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
