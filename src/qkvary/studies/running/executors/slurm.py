"""Slurm through submitit: each job of an array executes several runs."""

import importlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from qkvary.storage.durable import make_directory, remove_dir
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.contract import ClusterOptions, Resources, TaskEnd, WorkerTask
from qkvary.studies.running.executors.polling import PollingExecutor

FOLDER = "slurm"
"""The folder inside the store that has one folder per runner, with submitit's files and logs."""
POLL_SECONDS = 2.0
"""Seconds between two checks of the jobs of a queue."""
END_SECONDS = 5.0
"""Maximum number of seconds to wait for the end of cancelled jobs before their files are
removed."""
_OWN_ONLY = 0o700


class _Job:
    """The function of a job; submitit calls it again after a preemption or a time limit."""

    def __call__(self, function: Callable[[WorkerTask], TaskEnd], task: WorkerTask) -> TaskEnd:
        return function(task)

    def checkpoint(self, function: Callable[[WorkerTask], TaskEnd], task: WorkerTask) -> Any:
        """Return the job to submit again; the run's own checkpoints hold its state."""
        helpers: Any = importlib.import_module("submitit.helpers")
        return helpers.DelayedSubmission(self, function, task)


class SlurmExecutor(PollingExecutor):
    """Executes tasks in Slurm jobs or, for tests, in local processes, both through submitit."""

    def __init__(
        self,
        options: ClusterOptions,
        folder: Path,
        *,
        cluster: Literal["slurm", "local"] = "slurm",
    ) -> None:
        """Prepare to submit jobs; for tests, ``local`` runs them as processes of this machine."""
        super().__init__(options)
        # Every check of a job reads the shared folder.
        self.poll_seconds = 0.1 if cluster == "local" else POLL_SECONDS
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError(
                "expected Slurm's sbatch on PATH, got none: submit from a login node of the cluster"
            )
        self.runs_per_task = options.runs_per_job
        self._submitit: Any = importlib.import_module("submitit")
        self._cluster = cluster
        own = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._folder = folder.absolute() / FOLDER / own
        self._failed = self._cancelled = False

    def submit_all(
        self, function: Callable[[WorkerTask], TaskEnd], tasks: Sequence[WorkerTask]
    ) -> list[Future[TaskEnd]]:
        """Submit tasks as job arrays; tasks with the same needs share an array."""
        make_directory(self._folder)
        # The folder holds pickles, which other users must not replace.
        for folder in (self._folder.parent, self._folder):
            folder.chmod(_OWN_ONLY)
        futures: dict[int, Future[TaskEnd]] = {}
        for needs in dict.fromkeys(task.resources for task in tasks):
            array = [number for number, task in enumerate(tasks) if task.resources == needs]
            some = [tasks[number] for number in array]
            try:
                jobs = self._scheduler(needs).map_array(_Job(), [function] * len(some), some)
            except self._submitit.core.utils.FailedJobError as error:
                last = str(error).strip().splitlines()[-1]
                raise UsageError(f"Slurm refuses the jobs: {last}") from error
            futures |= {n: self.watch(job) for n, job in zip(array, jobs, strict=True)}
        return [futures[number] for number in range(len(tasks))]

    def _scheduler(self, needs: Resources) -> Any:
        chosen = self.options
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
            parameters["slurm_additional_parameters"] = chosen.sbatch
        scheduler.update_parameters(**parameters)
        return scheduler

    def find_ended(self, handles: Sequence[Any]) -> Sequence[Any]:
        """Return the jobs that have ended."""
        return [job for job in handles if job.done()]

    def load(self, handle: Any) -> TaskEnd:
        """Return what the task of an ended job reported."""
        try:
            return handle.result()
        except Exception:
            # Its log is kept if the task was not cancelled.
            self._failed |= not self._cancelled
            raise

    def stop(self) -> None:
        """Cancel the jobs; Slurm kills those that do not end."""
        self._cancelled = True
        for job in list(self.pending):
            job.cancel(check=False)

    def kill(self) -> None:
        """Cancel the jobs, and remove their files without waiting for their end."""
        self.stop()
        self._remove_files()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Remove the files of the jobs, unless one of them failed."""
        deadline = time.monotonic() + END_SECONDS
        while self.pending and time.monotonic() < deadline:
            time.sleep(0.05)
        super().shutdown(wait, cancel_futures=cancel_futures)
        if self._cancelled or not self.pending:
            self._remove_files()

    def _remove_files(self) -> None:
        if self._folder.exists() and not self._failed:
            remove_dir(self._folder)
            # Another runner may still have a folder here.
            with suppress(OSError):
                self._folder.parent.rmdir()


open_executor = SlurmExecutor
