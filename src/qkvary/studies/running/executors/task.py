"""Executes a task: runs that one process trains in sequence. Torch-free."""

import importlib
import socket

from qkvary.storage.environment import Stop, stop_in_order
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.studies.running.cells import RUNNER_GONE, CellEnd, execute_cell
from qkvary.studies.running.executors.contract import TaskEnd, WorkerTask
from qkvary.studies.running.store import Store
from qkvary.training.progress import Callbacks, Event


def execute_task(task: WorkerTask) -> TaskEnd:
    """Execute the runs of a task; at a signal, the run in progress writes a checkpoint."""
    ends, warnings = dict[str, CellEnd](), list[str]()
    error: QkvaryError | None = None
    with stop_in_order() as stop:
        try:
            _execute(task, ends, warnings, stop)
        except QkvaryError as found:
            error = found
    return TaskEnd(
        ends=ends,
        warnings=tuple(warnings),
        error=error,
        signal=stop.number,
        node=socket.gethostname(),
    )


def _execute(task: WorkerTask, ends: dict[str, CellEnd], warnings: list[str], stop: Stop) -> None:
    # The runner has made the folder.
    if not task.store.is_dir():
        raise UsageError(
            f"expected a folder of runs that all nodes see under the same path, got {task.store}: "
            "name another folder with --out"
        )
    train_cell = importlib.import_module(task.trainer).train_cell

    def is_stopping() -> bool:
        return stop.is_set() or RUNNER_GONE.is_set()

    for cell in task.cells:
        if is_stopping():
            return

        def note(event: Event, title: str = cell.title) -> None:
            warnings.extend([f"{title}: {event.warning}"] if event.warning else [])

        ends[cell.run_key] = execute_cell(
            Store(task.store),
            cell,
            train_cell,
            stop=is_stopping,
            callbacks=Callbacks(on_event=note),
            options=task.options,
            again=task.again.get(cell.run_key),
            crash=task.crashes.get(cell.run_key, ""),
        )
