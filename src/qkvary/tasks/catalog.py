"""Finds tasks by file name: every module of this package with a ``load``."""

import importlib
import pkgutil
from types import ModuleType

import qkvary.tasks
from qkvary.tasks.config_parts import TaskConfig
from qkvary.tasks.contract import Task


def load_task(config: TaskConfig) -> Task:
    """Return the task of a configuration: its data, network, loss and metrics."""
    return importlib.import_module(config.module or type(config).__module__).load(config)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    modules = (item.name for item in pkgutil.iter_modules(qkvary.tasks.__path__))
    return tuple(sorted(name for name in modules if hasattr(_module(name), "load")))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{qkvary.tasks.__name__}.{name}")
