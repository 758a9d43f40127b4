"""Imports modules of this room by file name, when their data is used and not before. Torch-free."""

import importlib
from typing import Any


def data_module(name: str) -> Any:
    """Return a module of ``data``."""
    return importlib.import_module(f"qkvary.data.{name}")
