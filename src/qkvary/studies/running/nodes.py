"""The folders of the nodes of a cluster: one for all, or one for each node. Torch-free."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from qkvary.storage.durable import atomic_write_file, make_directory, remove_file
from qkvary.storage.errors import BusyError, DamagedError
from qkvary.storage.file_systems import find_file_system
from qkvary.studies.running.cells import CellEnd
from qkvary.studies.running.executors.contract import Executor
from qkvary.studies.running.executors.task import scratch_name
from qkvary.studies.running.records import run_identity
from qkvary.studies.running.run_archive import PackedRun, add_run, check_networks, read_runs
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell

_MARKERS = f"cluster-{socket.gethostname()}-"
"""The start of the names of markers; the process and the time follow."""


class Nodes:
    """The folders of an executor's nodes, and the results that they return."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store, self._is_shared = store, executor.shared_folder
        self._marker = store.path.absolute() / f"{_MARKERS}{os.getpid()}-{time.time_ns()}"
        self.marker = str(self._marker) if executor.is_remote and self._is_shared else None
        """A file by which a node knows that it sees the same folder; None if it need not."""
        self.scratch = None if self._is_shared else scratch_name(store.path)
        """Name of the folder of a node that sees another one."""
        self.held: dict[str, tuple[PackedRun, CellEnd]] = {}
        """Results that another process keeps from being added, by run key."""

    def prepare(self, cells: Iterable[Cell], note: Callable[[str], None]) -> None:
        """Write the marker, and remove those of killed runners; or check the sizes of results.

        Raises:
            UsageError: if the networks of a run are too large for a result.
        """
        if not self._is_shared:
            check_networks(cells)
            return
        folder = self._marker.parent
        make_directory(folder)
        file_system = find_file_system(folder)
        if file_system is not None and file_system.lock_problem:
            note(file_system.lock_problem)
        for path in folder.glob(f"{_MARKERS}*"):
            pid = path.name.removeprefix(_MARKERS).partition("-")[0]
            if pid.isdecimal() and not _is_alive(int(pid)):
                remove_file(path)
        atomic_write_file(self._marker, b"")

    def close(self) -> None:
        """Remove the marker."""
        if self.marker is not None and self._marker.exists():
            remove_file(self._marker)

    def hold(self, data: bytes, cells: Mapping[str, Cell], ends: Mapping[str, CellEnd]) -> None:
        """Hold the runs that a task returned, until they are added.

        Args:
            data: The runs, packed.
            cells: The runs of the task, by key.
            ends: What became of them there.

        Raises:
            DamagedError: if one of them is damaged, or not one of the task.
        """
        runs = list(read_runs(data, "the result of a task")) if data else []
        for run in runs:
            cell = cells.get(run.record.run_key)
            if cell is None or run.config != run_identity(cell.run):
                raise DamagedError("the result of a task has a run that is not one of the task")
        for run in runs:
            key = run.record.run_key
            self.held[key] = run, ends.get(key, CellEnd(outcome="made"))

    def add_held(self, again: Mapping[str, int]) -> tuple[dict[str, CellEnd], dict[str, str]]:
        """Add results to the store; return those that ended, and why others have to wait.

        Args:
            again: Versions of the records that results replace, by run key.
        """
        ended, problems = dict[str, CellEnd](), dict[str, str]()
        for key, (run, end) in list(self.held.items()):
            try:
                added = add_run(run, self._store, again=again.get(key))
            except BusyError as error:
                problems[key] = str(error)
                continue
            del self.held[key]
            ended[key] = end if added else CellEnd(outcome="elsewhere")
        return ended, problems


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
