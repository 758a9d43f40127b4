"""Finds the task of a configuration, in the module that the configuration names."""

import importlib

from qkvary.storage.errors import MisfitError
from qkvary.tasks.config_parts import TaskConfig
from qkvary.tasks.contract import Task
from qkvary.text.names import brief, listed

_MEMBERS = tuple(name for name in vars(Task) if not name.startswith("_"))


def load_task(config: TaskConfig) -> Task:
    """Return the task of a configuration: its data, network, loss and metrics.

    Raises:
        MisfitError: if the module has no function ``load``, or if ``load`` returns no task, or one
            of a class with a version, which run keys would not depend on.
    """
    module = importlib.import_module(config.module or type(config).__module__)
    if not hasattr(module, "load"):
        raise MisfitError(
            f"expected a function load(config), which returns the task, in the file of "
            f"{type(config).__name__}, got none"
        )
    task = module.load(config)
    missing = [name for name in _MEMBERS if not hasattr(task, name)]
    if missing or isinstance(task, type):
        lacking = f" with {listed(missing)}" if len(missing) < len(_MEMBERS) and missing else ""
        raise MisfitError(f"expected load(config) to return a task{lacking}, got {brief(task)}")
    version = getattr(task, "version", None)
    if isinstance(version, str | int) and version != getattr(config, "version", None):
        raise MisfitError(
            f"expected the version of {type(task).__name__} in {type(config).__name__}, because "
            f"run keys depend on the version of the configuration only, got version {version!r} in "
            f"{type(task).__name__}"
        )
    return task
