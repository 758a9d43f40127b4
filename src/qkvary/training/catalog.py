"""What is imported when it is asked for, because not everybody has it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from qkvary.storage.errors import UsageError


def load_tensorboard() -> ModuleType:
    """``torch.utils.tensorboard``.

    Raises:
        UsageError: if TensorBoard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise UsageError("tensorboard is not installed: pip install 'qkvary[track]' brings it")
    return import_module("torch.utils.tensorboard")
