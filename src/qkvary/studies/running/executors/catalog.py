"""Loads executors by file name; their libraries are imported only when they are asked for."""

import importlib
from pathlib import Path
from typing import Any, Literal, get_args

from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.contract import ClusterOptions, Executor
from qkvary.text.names import suggest

ExecutorName = Literal["local", "ray", "slurm"]
"""``local`` stands for the worker processes of this machine, which need no executor."""
EXECUTORS: tuple[str, ...] = get_args(ExecutorName)


def load_executor(name: str, options: ClusterOptions, folder: Path) -> Executor | None:
    """Return an executor by its name; None for the workers of this machine.

    Args:
        name: One of ``EXECUTORS``.
        options: Its options.
        folder: The folder of runs.

    Raises:
        UsageError: for an unknown name, a missing library, or a scheduler that does not answer.
    """
    if name not in EXECUTORS:
        raise UsageError(f"expected an executor, got {name!r}; {suggest(name, EXECUTORS)}")
    if name == "local":
        return None
    module: Any = importlib.import_module(f"qkvary.studies.running.executors.{name}")
    return module.open_executor(options, folder)
