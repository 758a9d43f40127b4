"""Finds tasks and their data by file name: a task is a module with a ``load``. Torch-free."""

import importlib
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, Any

import qkvary.tasks

if TYPE_CHECKING:
    from qkvary.tasks.contract import Task


def load_task(config: Any) -> "Task":
    """Return the task of a configuration: its data, network, loss and metrics."""
    return importlib.import_module(config.module or type(config).__module__).load(config)


def data_module(name: str) -> Any:
    """Return a module of ``data``, which is imported when the data is."""
    return importlib.import_module(f"qkvary.data.{name}")


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, sorted."""
    modules = (item.name for item in pkgutil.iter_modules(qkvary.tasks.__path__))
    return tuple(sorted(name for name in modules if hasattr(_module(name), "load")))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{qkvary.tasks.__name__}.{name}")
