"""Loads executors by file name; their libraries are imported only when needed."""

import importlib
from pathlib import Path
from typing import Any, Literal, get_args

from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.studies.running.executors.contract import CLUSTER, ClusterOptions, Executor
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.text.names import suggest

ExecutorName = Literal["local", "ray", "slurm"]
"""``local`` means worker processes of this machine."""
EXECUTORS: tuple[str, ...] = get_args(ExecutorName)
_LIBRARIES = {"ray": "ray", "slurm": "submitit"}
_OPTIONS = {
    "address": "ray",
    "gpu_share": "ray",
    "partition": "slurm",
    "minutes": "slurm",
    "runs_per_job": "slurm",
    "parallel_jobs": "slurm",
    "slurm": "slurm",
}
"""The executor of each option."""


def check_executor(name: str, options: ClusterOptions, workers: int | None) -> None:
    """Refuse an unknown executor, options that do not fit the executor, and a missing library."""
    if name not in EXECUTORS:
        raise UsageError(f"expected an executor, got {name!r}; {suggest(name, EXECUTORS)}")
    for option, executor in _OPTIONS.items():
        if executor != name and getattr(options, option) != getattr(CLUSTER, option):
            raise UsageError(f"expected executor {executor} with {option}, got {name}")
    if name != "local":
        if workers is not None:
            raise UsageError(f"expected no workers with executor {name}, got {workers}")
        require(_LIBRARIES[name])


def load_executor(
    name: str, options: ClusterOptions, folder: Path, workers: int | None = None
) -> Executor:
    """Return an executor by its name; ``local`` has one worker per usable core by default."""
    if name == "local":
        return LocalExecutor(workers)
    module: Any = importlib.import_module(f"qkvary.studies.running.executors.{name}")
    return module.open_executor(options, folder)
