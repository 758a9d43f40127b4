"""Executes a task: the runs that one process makes one after the other. Torch-free.

A node that does not see the store uses a store of its own, and returns the finished runs.
"""

import importlib
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from qkvary.storage.durable import atomic_write_file, make_directory, remove_dir, remove_file
from qkvary.storage.errors import BusyError, QkvaryError, UsageError
from qkvary.storage.file_systems import find_file_system
from qkvary.studies.running.cells import (
    RUNNER_GONE,
    TERMINATED,
    CellEnd,
    execute_cell,
    handle_endings,
    record_failure,
)
from qkvary.studies.running.executors.contract import Task, TaskEnd
from qkvary.studies.running.run_archive import find_excess, pack_results
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell
from qkvary.training.progress import Callbacks, Event

_MARKERS = f"cluster-{socket.gethostname()}-"
"""The start of the names of markers; the process and the time follow."""


def execute_task(task: Task) -> TaskEnd:
    """Execute the runs of a task; at SIGINT or SIGTERM the current one writes a checkpoint."""
    ends, warnings, runs = dict[str, CellEnd](), list[str](), b""
    error: QkvaryError | None = None
    stopping = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        if stopping.is_set():
            os._exit(128 + signal.SIGTERM)
        stopping.set()
        TERMINATED.set()

    with handle_endings(stop):
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
    if error is not None and (task.marker or task.scratch):
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
    if task.marker is not None and not Path(task.marker).exists():
        raise UsageError(
            f"{task.store} is not the folder of this study: expected a folder that all nodes "
            "see under the same path, give one with --out, or --no-shared-folder"
        )
    return Store(task.store)


def marker_path(store: Path) -> Path:
    """Return the path of a new marker: a file by which nodes know that they see the same folder."""
    return store / f"{_MARKERS}{os.getpid()}-{time.time_ns()}"


def write_marker(path: Path, note: Callable[[str], None]) -> None:
    """Write a marker, and remove those of killed runners; name a problem of the file system."""
    folder = path.parent
    make_directory(folder)
    file_system = find_file_system(folder)
    if file_system is not None and file_system.lock_problem:
        note(file_system.lock_problem)
    for other in folder.glob(f"{_MARKERS}*"):
        pid = other.name.removeprefix(_MARKERS).partition("-")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            remove_file(other)
    atomic_write_file(path, b"")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def scratch_name(store: Path) -> str:
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


def take_runs(store: Store, cells: tuple[Cell, ...]) -> bytes:
    """Return the finished runs of a task, and remove them from this node.

    A damaged run is opened again, and the next process there repeats it. One that is too large
    returns as failed.
    """
    done = list[str]()
    for cell in cells:
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
    claim = store.claim(key, cell.run.identity(), again=again)
    if claim is None:
        return
    if excess is None:
        claim.release()
    else:
        record_failure(claim, cell, excess)
