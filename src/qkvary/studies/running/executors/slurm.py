"""Slurm through submitit: each job of an array executes several runs."""

import concurrent.futures
import importlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from qkvary.storage.durable import make_directory
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.contract import (
    ClusterOptions,
    Executor,
    Resources,
    TaskEnd,
    WorkerTask,
    needed_resources,
)

FOLDER = "slurm"
"""The folder inside the store that has one folder per runner, with submitit's files and logs."""
POLL_SECONDS = 2.0
"""Seconds between two checks of the jobs of a queue."""
END_SECONDS = 5.0
"""Maximum number of seconds to wait for the end of cancelled jobs."""
_OWN_ONLY = 0o700


class _Job:
    """The function of a job; submitit calls it again after a preemption or a time limit."""

    def __call__(self, function: Callable[[WorkerTask], TaskEnd], task: WorkerTask) -> TaskEnd:
        return function(task)

    def checkpoint(self, function: Callable[[WorkerTask], TaskEnd], task: WorkerTask) -> Any:
        """Return the job to submit again. Its runs resume from their own checkpoints."""
        helpers: Any = importlib.import_module("submitit.helpers")
        return helpers.DelayedSubmission(self, function, task)


class SlurmExecutor(Executor):
    """Executes tasks in Slurm jobs or, for tests, in local processes, both through submitit."""

    is_remote = True
    stop_seconds = 60.0

    def __init__(
        self,
        options: ClusterOptions,
        folder: Path,
        *,
        cluster: Literal["slurm", "local"] = "slurm",
    ) -> None:
        """Prepare to submit jobs; for tests, ``local`` runs them as processes of this machine."""
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise UsageError(
                "expected Slurm's sbatch on PATH, got none: submit from a login node of the cluster"
            )
        self.options = options
        self.runs_per_task = options.runs_per_job
        self._submitit: Any = importlib.import_module("submitit")
        self._cluster = cluster
        own = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        self._folder = folder.absolute() / FOLDER / own
        self._pending: dict[Any, Future[TaskEnd]] = {}
        """The futures of the jobs that have not ended."""
        self._closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True)
        self._poller.start()

    def submit_all(
        self, function: Callable[[WorkerTask], TaskEnd], tasks: Sequence[WorkerTask]
    ) -> list[Future[TaskEnd]]:
        """Submit tasks as job arrays; consecutive tasks with the same needs share an array."""
        make_directory(self._folder)
        # The folder holds pickles, which other users must not replace.
        for folder in (self._folder.parent, self._folder):
            folder.chmod(_OWN_ONLY)
        futures: list[Future[TaskEnd]] = []
        arrays: dict[Resources, list[WorkerTask]] = {}
        for task in tasks:
            needs = needed_resources(task, self.options.gpu_share)
            arrays.setdefault(needs, []).append(task)
        for needs, some in arrays.items():
            try:
                jobs = self._scheduler(needs).map_array(_Job(), [function] * len(some), some)
            except self._submitit.core.utils.FailedJobError as error:
                last = str(error).strip().splitlines()[-1]
                raise UsageError(f"Slurm refuses the jobs: {last}") from error
            for job in jobs:
                self._pending[job] = Future()
                futures.append(self._pending[job])
        return futures

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
            parameters["gpus_per_node"] = 1
        if chosen.partition is not None:
            parameters["slurm_partition"] = chosen.partition
        if chosen.slurm:
            given = dict(option.split("=", 1) for option in chosen.slurm)
            parameters["slurm_additional_parameters"] = given
        scheduler.update_parameters(**parameters)
        return scheduler

    def _poll(self) -> None:
        """Settle the futures of jobs that have ended, until the executor is shut down."""
        # Every check of a job reads the shared folder.
        seconds = 0.1 if self._cluster == "local" else POLL_SECONDS
        while not self._closed.wait(seconds):
            for job, future in list(self._pending.items()):
                try:
                    if not job.done():
                        continue
                    future.set_result(job.result())
                # A damaged pickle can raise any exception.
                except Exception as error:  # noqa: BLE001
                    future.set_exception(error)
                del self._pending[job]

    def stop(self) -> None:
        """Cancel the jobs; Slurm kills jobs that do not end."""
        for job in list(self._pending):
            job.cancel(check=False)

    def kill(self) -> None:
        """Cancel the jobs; Slurm kills jobs that do not end."""
        self.stop()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Wait a moment for cancelled jobs, then stop polling."""
        concurrent.futures.wait([*self._pending.values()], END_SECONDS)
        self._closed.set()
        self._poller.join()


open_executor = SlurmExecutor
