"""The contract of executors, which submit tasks to a scheduler, collect their ends and cancel them.

An executor decides nothing about runs. Each of its tasks claims its runs from the store as a local
worker does, so a task that is executed twice, or late, does no harm. Torch-free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from qkvary.studies.running.messages import Job, WorkerMessage
from qkvary.studies.study import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Options of the executors; they do not affect results."""

    address: str | None = None
    """Address of a Ray cluster; by default RAY_ADDRESS, or the cluster of this machine."""
    gpu_share: float = 1.0
    """GPUs per run on a device; several runs share one below 1."""
    runs_per_job: int = 1
    """Runs that one Slurm job executes one after the other."""
    parallel_jobs: int = 256
    """Slurm jobs that run at once."""
    minutes: int = 60
    """Time limit of a Slurm job."""
    partition: str | None = None
    """Slurm partition; None for the default one."""
    slurm: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further options of ``sbatch``, such as ``{"account": "name"}``."""
    shared_folder: bool = True
    """Whether all nodes see the folder of runs; if not, runs return through the scheduler."""

    def __post_init__(self) -> None:
        for name in ("runs_per_job", "parallel_jobs", "minutes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.gpu_share <= 8.0:
            raise ValueError(f"gpu_share must be above 0 and at most 8, got {self.gpu_share}")
        if self.gpu_share > 1.0 and not float(self.gpu_share).is_integer():
            raise ValueError(f"gpu_share must be whole above 1, got {self.gpu_share}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a run needs of a node."""

    cores: int
    """CPU cores."""
    gpus: float
    """GPUs, possibly a share of one."""
    memory_bytes: int
    """Main memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Runs that one process of a cluster executes one after the other."""

    numbers: tuple[int, ...]
    """Numbers of its runs in the study."""
    job: Job
    """Its runs."""
    resources: Resources
    """What each of them needs."""
    marker: str | None
    """A file in the store, by which the node knows that it sees the same folder; None if it need
    not see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a task."""

    task: Task
    """The task."""
    messages: tuple[WorkerMessage, ...] = ()
    """Messages about its runs."""
    runs: bytes = b""
    """Its finished runs, packed, if nodes do not see the store."""
    error: str = ""
    """Why it ended without messages, if it did."""


class Executor(Protocol):
    """A scheduler that executes tasks."""

    runs_per_task: int
    """Runs to put into one task."""
    shared_folder: bool
    """Whether all nodes see the folder of runs."""

    def needs(self, cell: Cell) -> Resources:
        """Return what a run needs of a node."""
        ...

    def find_obstacle(self, needs: Resources, /) -> str | None:
        """Return why runs with these needs would wait without end, or None."""
        ...

    def submit(self, tasks: Sequence[Task]) -> None:
        """Submit tasks; they wait until the scheduler finds a place for them."""
        ...

    def collect(self, seconds: float) -> Sequence[Ending]:
        """Return the tasks that have ended, after at most about ``seconds``."""
        ...

    def cancel(self, *, now: bool = False) -> None:
        """Cancel all tasks; those that are executed write a checkpoint and end.

        Args:
            now: Whether to end them without a checkpoint, where the scheduler can, because this
                process ends.
        """
        ...

    def close(self) -> None:
        """Disconnect from the scheduler."""
        ...
