"""What needs transformers, imported when it is asked for: a command line is read without torch."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from qkvary.storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkvary.checkpoints.huggingface.folders import Exported


def load_export_folder() -> Callable[..., Exported]:
    """``folders.export_folder``: a model as a folder for ``from_pretrained``.

    Raises:
        UsageError: if transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise UsageError("transformers is not installed: pip install 'qkvary[hf]' brings it")
    return import_module("qkvary.checkpoints.huggingface.folders").export_folder
