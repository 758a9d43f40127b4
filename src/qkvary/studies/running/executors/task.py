"""Executes a task: runs that one process trains one after another. Torch-free.

A node that cannot see the store uses a local one, and returns the finished runs.
"""

import importlib
import os
import socket
import tempfile
import threading
import time
from hashlib import sha256
from pathlib import Path

from qkvary.storage.durable import AppendFile, make_directory, remove_dir
from qkvary.storage.environment import stop_in_order
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.studies.running.cells import RUNNER_GONE, TERMINATED, CellEnd, execute_cell
from qkvary.studies.running.executors.contract import Task, TaskEnd
from qkvary.studies.running.run_archive import FinishedRun, read_run
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell
from qkvary.training.progress import Callbacks, Event


def execute_task(task: Task) -> TaskEnd:
    """Execute the runs of a task; at SIGINT or SIGTERM the current one writes a checkpoint."""
    ends, warnings, runs = dict[str, CellEnd](), list[str](), tuple[FinishedRun, ...]()
    error: QkvaryError | None = None
    stopping = threading.Event()

    def stop(_number: int) -> None:
        stopping.set()
        TERMINATED.set()

    with stop_in_order(stop):
        try:
            store = _find_store(task)
            try:
                _execute(task, store, stopping, ends, warnings)
            except QkvaryError as found:
                error = found
            if task.scratch is not None:
                runs = take_runs(store, task.cells)
        except QkvaryError as found:
            error = found
    if error is not None and (task.mark or task.scratch):
        error = type(error)(f"{error} (on {socket.gethostname()})")
    return TaskEnd(ends=ends, warnings=tuple(warnings), runs=runs, error=error)


def _execute(
    task: Task,
    store: Store,
    stopping: threading.Event,
    ends: dict[str, CellEnd],
    warnings: list[str],
) -> None:
    train = importlib.import_module(task.trainer).train_cell
    again = {} if task.scratch is not None else task.again

    def is_stopping() -> bool:
        return stopping.is_set() or RUNNER_GONE.is_set()

    for cell in task.cells:
        if is_stopping():
            return

        def note(event: Event, title: str = cell.title) -> None:
            warnings.extend([f"{title}: {event.warning}"] if event.warning else [])

        ends[cell.run_key] = execute_cell(
            store,
            cell,
            train,
            stop=is_stopping,
            callbacks=Callbacks(on_event=note),
            options=task.options,
            again=again.get(cell.run_key),
        )


def _find_store(task: Task) -> Store:
    """Return the store that this node uses."""
    if task.scratch is not None:
        return Store(_scratch_folder(task.scratch))
    if task.mark is not None:
        path, line = task.mark
        if not path.is_file() or line not in path.read_text("utf-8").splitlines():
            raise UsageError(
                f"{task.store} is not the folder of this study: expected a folder that all nodes "
                "see under the same path: name it with --out, or use --no-shared-folder"
            )
    return Store(task.store)


def mark_folder(store: Path) -> tuple[Path, str]:
    """Add a line to a file of the store, by which nodes check that they see the same folder.

    Only runners of this machine write the file.
    """
    make_directory(store)
    path, line = store / f"cluster-{socket.gethostname()}", f"{os.getpid()} {time.time_ns()}"
    file = AppendFile(path)
    file.append(f"{line}\n".encode())
    file.close()
    return path, line


def scratch_name(store: Path) -> str:
    """Return the name of the folder that nodes use for a store's unfinished runs."""
    place = f"{socket.gethostname()}:{store.absolute()}"
    return f"qkvary-{os.getuid()}-{sha256(place.encode()).hexdigest()[:16]}"


def _scratch_folder(name: str) -> Path:
    """Return this node's folder of unfinished runs; no other user can write to it."""
    folder = Path(tempfile.gettempdir()) / name
    make_directory(folder)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to another user: set TMPDIR to a folder of yours")
    folder.chmod(0o700)
    return folder


def take_runs(store: Store, cells: tuple[Cell, ...]) -> tuple[FinishedRun, ...]:
    """Return the finished runs of a task, and remove them from this node.

    A damaged run is reopened, and the next process on this node repeats it.
    """
    keys = [cell.run_key for cell in cells if store.check(cell.run_key, cell.run.identity())[0]]
    runs = tuple(read_run(store, key, networks=True) for key in keys)
    for key in keys:
        remove_dir(store.directory(key))
    return runs
