"""Slurm through submitit: each job of an array executes several runs."""

import importlib
import os
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from qkvary.storage.durable import make_directory, remove_dir
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.contract import (
    ClusterOptions,
    Ending,
    Executor,
    Resources,
    Task,
)
from qkvary.studies.running.executors.execution import (
    Execution,
    Returned,
    needed_resources,
    read_ending,
)
from qkvary.studies.running.work_loop import TrainFunction
from qkvary.studies.running.worker import train_cell
from qkvary.studies.study import Cell

FOLDER = "slurm"
"""The folder below the store with one folder for each runner: submitit's files and logs."""
POLL_SECONDS = 2.0
"""Seconds between two checks of the jobs of a queue."""
END_SECONDS = 5.0
"""Maximum of seconds to wait for the end of cancelled jobs, before their files are removed."""
_STEP_SECONDS = 0.1
_OWN_ONLY = 0o700


class _Job:
    """The function of a job, which submitit calls again after a preemption or a time limit."""

    def __call__(self, execution: Execution) -> Returned:
        return execution()

    def checkpoint(self, execution: Execution) -> Any:
        """Return what submitit submits again; the run's own checkpoints hold its state."""
        helpers: Any = importlib.import_module("submitit.helpers")
        return helpers.DelayedSubmission(self, execution)


class SlurmExecutor:
    """Executes tasks in jobs of Slurm, or in local processes through the same library."""

    def __init__(
        self,
        options: ClusterOptions,
        folder: Path,
        train_run: TrainFunction = train_cell,
        *,
        cluster: Literal["slurm", "local"] = "slurm",
    ) -> None:
        """Prepare to submit jobs.

        Args:
            options: Limits and partition.
            folder: The folder of runs.
            train_run: Trains one run.
            cluster: ``local`` for processes of this machine, for tests.

        Raises:
            UsageError: if this machine has no Slurm.
        """
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError(
                "expected Slurm's sbatch on PATH, got none: submit from a login node of the cluster"
            )
        self.runs_per_task, self.shared_folder = options.runs_per_job, options.shared_folder
        self._submitit: Any = importlib.import_module("submitit")
        self._options, self._train_run, self._cluster = options, train_run, cluster
        own = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._folder = folder.absolute() / FOLDER / own
        self._jobs: dict[str, tuple[Any, Task]] = {}
        self._failed = self._cancelled = False

    def needs(self, cell: Cell) -> Resources:
        """Return what a run needs of a node."""
        return needed_resources(cell, self._options.gpu_share)

    def find_obstacle(self, _needs: Resources) -> str | None:
        """Return None: Slurm refuses what no node of a partition has."""
        return None

    def submit(self, tasks: Sequence[Task]) -> None:
        """Submit tasks as arrays, one for all tasks with the same needs."""
        make_directory(self._folder)
        # It holds pickles, which nobody else may replace.
        for folder in (self._folder.parent, self._folder):
            folder.chmod(_OWN_ONLY)
        for needs in dict.fromkeys(task.resources for task in tasks):
            array = [task for task in tasks if task.resources == needs]
            executions = [Execution.of(task, self._train_run) for task in array]
            try:
                jobs = self._scheduler(needs).map_array(_Job(), executions)
            except self._submitit.core.utils.FailedJobError as error:
                last = str(error).strip().splitlines()[-1]
                raise UsageError(f"Slurm refuses the jobs: {last}") from error
            self._jobs |= {job.job_id: (job, task) for job, task in zip(jobs, array, strict=True)}

    def _scheduler(self, needs: Resources) -> Any:
        chosen = self._options
        scheduler = self._submitit.AutoExecutor(folder=self._folder, cluster=self._cluster)
        parameters: dict[str, Any] = {
            "name": "qkvary",
            "cpus_per_task": needs.cores,
            "mem_gb": needs.memory_bytes / 2**30,
            "timeout_min": chosen.minutes,
            "slurm_array_parallelism": chosen.parallel_jobs,
        }
        if needs.gpus:
            parameters["gpus_per_node"] = max(1, round(needs.gpus))
        if chosen.partition is not None:
            parameters["slurm_partition"] = chosen.partition
        if chosen.slurm:
            parameters["slurm_additional_parameters"] = dict(chosen.slurm)
        scheduler.update_parameters(**parameters)
        return scheduler

    def collect(self, seconds: float) -> Sequence[Ending]:
        """Return the tasks whose jobs have ended."""
        ended = [name for name, (job, _) in self._jobs.items() if job.done()]
        if not ended:
            # Every check of a job reads the common folder.
            time.sleep(seconds if self._cluster == "local" else POLL_SECONDS)
        return [self._end(*self._jobs.pop(name)) for name in ended]

    def _end(self, job: Any, task: Task) -> Ending:
        ending = read_ending(task, job.result)
        if not ending.error:
            return ending
        self._failed |= not self._cancelled
        return replace(ending, error=f"job {job.job_id}: {ending.error}")

    def cancel(self, *, now: bool = False) -> None:
        """Cancel the jobs; Slurm kills those that do not end.

        Args:
            now: Whether to remove their files too, without waiting for their end.
        """
        self._cancelled = True
        for job, _ in self._jobs.values():
            job.cancel(check=False)
        if now:
            self._remove_files()

    def close(self) -> None:
        """Remove the files of the jobs, unless one of them failed."""
        deadline = time.monotonic() + END_SECONDS
        while self._jobs and time.monotonic() < deadline:
            self.collect(_STEP_SECONDS)
        if self._cancelled or not self._jobs:
            self._remove_files()

    def _remove_files(self) -> None:
        if self._folder.exists() and not self._failed:
            remove_dir(self._folder)
            # Another runner may have jobs.
            with suppress(OSError):
                self._folder.parent.rmdir()


def open_executor(options: ClusterOptions, folder: Path) -> Executor:
    """Return the executor of this cluster's queue."""
    return SlurmExecutor(options, folder)
