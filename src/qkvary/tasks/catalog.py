"""Finds tasks by file name: every module of this package with a ``load``."""

import importlib
import pkgutil

import qkvary.tasks
from qkvary.tasks.config import ImageTaskConfig, TaskConfig
from qkvary.tasks.contract import Task
from qkvary.text.names import suggest


def load_task(config: TaskConfig) -> Task:
    """Return the task that a configuration names.

    Raises:
        ValueError: if there is no such task.
    """
    # The name of an image task is its data set; one file has the task of all of them.
    name = "images" if isinstance(config, ImageTaskConfig) else config.name
    if name in _modules():
        module = importlib.import_module(f"{qkvary.tasks.__name__}.{name}")
        if hasattr(module, "load"):
            return module.load(config)
    raise ValueError(f"unknown task {config.name!r}; {suggest(config.name, task_names())}")


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    return tuple(
        name
        for name in _modules()
        if hasattr(importlib.import_module(f"{qkvary.tasks.__name__}.{name}"), "load")
    )


def _modules() -> tuple[str, ...]:
    return tuple(sorted(item.name for item in pkgutil.iter_modules(qkvary.tasks.__path__)))
