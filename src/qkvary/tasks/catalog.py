"""Finds the task that belongs to a configuration, by the module that the configuration names."""

import importlib

from qkvary.tasks.config_parts import TaskConfig
from qkvary.tasks.contract import Task


def load_task(config: TaskConfig) -> Task:
    """Return the task of a configuration: its data, network, loss and metrics."""
    return importlib.import_module(config.module or type(config).__module__).load(config)
