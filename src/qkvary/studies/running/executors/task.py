"""Executes a task: runs that one process trains one after another. Torch-free."""

import importlib
import socket

from qkvary.storage.environment import stop_in_order
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.studies.running.cells import RUNNER_GONE, TERMINATED, CellEnd, execute_cell
from qkvary.studies.running.executors.contract import TaskEnd, WorkerTask
from qkvary.studies.running.store import Store
from qkvary.training.progress import Callbacks, Event


def execute_task(task: WorkerTask) -> TaskEnd:
    """Execute the runs of a task.

    At SIGINT or SIGTERM, the run in progress writes a checkpoint.
    """
    ends, warnings = dict[str, CellEnd](), list[str]()
    error: QkvaryError | None = None
    TERMINATED.clear()
    with stop_in_order(lambda _number: TERMINATED.set()):
        try:
            _execute(task, ends, warnings)
        except QkvaryError as found:
            error = found
    return TaskEnd(ends=ends, warnings=tuple(warnings), error=error, node=socket.gethostname())


def _execute(task: WorkerTask, ends: dict[str, CellEnd], warnings: list[str]) -> None:
    # The runner has made the folder.
    if not task.store.is_dir():
        raise UsageError(
            f"expected a folder of runs that all nodes see under the same path, got {task.store}: "
            "name another folder with --out"
        )
    train_cell = importlib.import_module(task.trainer).train_cell
    for cell in task.cells:
        if _is_stopping():
            return

        def note(event: Event, title: str = cell.title) -> None:
            warnings.extend([f"{title}: {event.warning}"] if event.warning else [])

        ends[cell.run_key] = execute_cell(
            Store(task.store),
            cell,
            train_cell,
            stop=_is_stopping,
            callbacks=Callbacks(on_event=note),
            options=task.options,
            again=task.again.get(cell.run_key),
            crash=task.crashes.get(cell.run_key, ""),
        )


def _is_stopping() -> bool:
    return TERMINATED.is_set() or RUNNER_GONE.is_set()
