"""The interface of executors: their options, tasks and methods. Torch-free.

An executor implements ``concurrent.futures.Executor``: ``submit(function, task)`` returns a future.
It decides nothing about runs. Each task claims its runs from the store, so executing a task twice,
or late, is harmless.
"""

import concurrent.futures
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from qkvary.arch.canonical import import_code
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.studies.running.cells import CellEnd, CellOptions
from qkvary.studies.study import Cell
from qkvary.training.memory import training_bytes

PROCESS_BYTES = 2**30
"""Memory that a process needs for torch and for the data of its task. Weights and activations are
added to it."""
DEVICE_BYTES = 2**32
"""Minimum main memory of a run on a device. It holds the libraries, and copies of the state for
checkpoints."""
MEMORY_UNIT = 2**28
"""Memory is rounded up to a multiple of this, so that similar variants can share a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of the executors; they do not affect results."""

    address: str | None = None
    """ray: address of the cluster; RAY_ADDRESS or this machine if not given."""
    gpu_share: float = 1.0
    """ray: share of a GPU for each run on a device; 0.25 lets four runs share one."""
    partition: str | None = None
    """slurm: partition of the jobs."""
    minutes: int = 60
    """slurm: time limit of a job in minutes."""
    runs_per_job: int = 1
    """slurm: runs that a job executes in sequence."""
    parallel_jobs: int = 256
    """slurm: maximum number of jobs that run at once."""
    slurm: Sequence[str] = ()
    """slurm: a further option for sbatch, such as account=name (can be repeated)."""

    def __post_init__(self) -> None:
        for name in ("runs_per_job", "parallel_jobs", "minutes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.gpu_share <= 1.0:
            raise ValueError(f"gpu_share must be above 0 and at most 1, got {self.gpu_share}")
        for option in self.slurm:
            if not all(option.partition("=")):
                raise UsageError(f"slurm: expected NAME=VALUE, such as account=name, got {option}")


CLUSTER = ClusterOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """The runs that one process executes in sequence."""

    store: Path
    cells: tuple[Cell, ...]
    options: CellOptions
    trainer: str
    """The module whose function ``train_cell`` trains the runs."""
    again: Mapping[str, int] = field(default_factory=dict[str, int])
    """Finished runs to repeat: a mapping from run key to the version of the record."""
    crashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each run of a lost task, by run key: the reason for the last loss."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the task so that the user's classes are imported before the task is loaded."""
        code = dict.fromkeys(one for cell in self.cells for one in cell.run.code)
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _restore, (_Imports(code=tuple(code)), values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Imports:
    """The first part of a pickled task, which imports the user's code when it is unpickled.

    The rest of the pickle needs this code.
    """

    code: tuple[str, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return import_code, (self.code,)


def _restore(_imported: None, values: Mapping[str, Any]) -> WorkerTask:
    return WorkerTask(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """The report of a task at its end."""

    ends: Mapping[str, CellEnd] = field(default_factory=dict[str, CellEnd])
    """The end of each run by its key; runs that were not reached are missing."""
    warnings: tuple[str, ...] = ()
    error: QkvaryError | None = None
    """An error that prevents all runs from continuing, such as a full disk."""
    signal: int = 0
    """The signal that stopped the task; 0 if no signal did."""
    node: str = ""
    """Name of the machine that executed the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The cores, GPUs and memory that the runs of a task need."""

    cores: int
    gpus: float
    """Share of a GPU; 0 for runs on a CPU."""
    memory_bytes: int


def needed_resources(task: WorkerTask, gpu_share: float) -> Resources:
    """Return the resources that suffice for every run of a task."""
    runs = [cell.run for cell in task.cells]
    on_cpu = all(run.device == "cpu" for run in runs)
    memory = PROCESS_BYTES + max(training_bytes(run) for run in runs)
    memory = max(memory, 0 if on_cpu else DEVICE_BYTES)
    return Resources(
        cores=max(run.threads for run in runs),
        gpus=0.0 if on_cpu else gpu_share,
        memory_bytes=-(-memory // MEMORY_UNIT) * MEMORY_UNIT,
    )


class Executor(concurrent.futures.Executor):
    """An executor that can also be stopped cleanly, and killed."""

    runs_per_task = 1
    """Number of runs to put into one task."""
    is_remote = False
    """Whether tasks are executed on other machines too."""
    stop_seconds = math.inf
    """Maximum number of seconds to wait until stopped tasks have written their checkpoints."""

    def submit_all(
        self, function: Callable[[WorkerTask], TaskEnd], tasks: Sequence[WorkerTask]
    ) -> list[Future[TaskEnd]]:
        """Submit several tasks at once."""
        return [self.submit(function, task) for task in tasks]

    def stop(self) -> None:
        """Cancel all tasks; running tasks write a checkpoint and end."""
        raise NotImplementedError

    def kill(self) -> None:
        """Cancel all tasks without waiting for checkpoints, if the scheduler can."""
        raise NotImplementedError
