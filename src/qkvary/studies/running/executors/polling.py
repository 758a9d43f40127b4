"""What cluster executors share: they compute what a run needs, and poll for ended tasks."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from qkvary.studies.running.executors.contract import (
    CLUSTER,
    ClusterOptions,
    Executor,
    Resources,
    TaskEnd,
)
from qkvary.studies.study import Cell
from qkvary.training.memory import training_bytes

PROCESS_BYTES = 2**30
"""Memory of a process for torch and the data of its task, in addition to weights and
activations."""
DEVICE_BYTES = 2**32
"""Minimum main memory of a run on a device, for libraries and copies of its state for
checkpoints."""
MEMORY_UNIT = 2**28
"""Memory is rounded up to a multiple of this, so that similar variants can share a job."""


def needed_resources(cell: Cell, gpu_share: float) -> Resources:
    """Return the cores, GPUs and memory that a run needs."""
    run = cell.run
    on_cpu = run.device == "cpu"
    memory = max(PROCESS_BYTES + training_bytes(run), 0 if on_cpu else DEVICE_BYTES)
    return Resources(
        cores=run.threads,
        gpus=0.0 if on_cpu else gpu_share,
        memory_bytes=-(-memory // MEMORY_UNIT) * MEMORY_UNIT,
    )


class PollingExecutor(Executor):
    """An executor whose scheduler must be asked which tasks have ended."""

    is_remote = True
    stop_seconds = 60.0
    poll_seconds = 0.25

    def __init__(self, options: ClusterOptions = CLUSTER) -> None:
        self.options = options
        self.pending: dict[Any, Future[TaskEnd]] = {}
        """The futures of the tasks, by the scheduler's handles."""
        self._asking: threading.Thread | None = None
        self._closed = threading.Event()

    def needs(self, cell: Cell) -> Resources:
        """Return the cores, GPUs and memory that a run needs."""
        return needed_resources(cell, self.options.gpu_share)

    def watch(self, handle: Any) -> Future[TaskEnd]:
        """Return a future for the submitted task, and poll the scheduler for its end."""
        if self._closed.is_set():
            raise RuntimeError("expected an open executor, got one that was shut down")
        future = self.pending[handle] = Future[TaskEnd]()
        future.set_running_or_notify_cancel()
        if self._asking is None:
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()
        return future

    def find_ended(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Return the handles of the tasks that have ended."""
        raise NotImplementedError

    def load(self, handle: Any) -> TaskEnd:
        """Return what an ended task reported, or raise the scheduler's error."""
        raise NotImplementedError

    def _ask(self) -> None:
        while not self._closed.wait(self.poll_seconds):
            try:
                for handle in self.find_ended(list(self.pending)):
                    self._settle(handle)
            # The runner has to know whatever goes wrong in the scheduler.
            except Exception as error:  # noqa: BLE001
                for future in [self.pending.pop(handle) for handle in list(self.pending)]:
                    future.set_exception(ConnectionError(str(error)))

    def _settle(self, handle: Any) -> None:
        future = self.pending.pop(handle)
        try:
            future.set_result(self.load(handle))
        # A damaged pickle can raise any exception.
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Stop polling the scheduler for ended tasks."""
        self._closed.set()
        if self._asking is not None and self._asking is not threading.current_thread():
            self._asking.join(timeout=5.0)
