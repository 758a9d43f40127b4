"""Imports modules of this package by file name, when their data is first used. Torch-free."""

import importlib
from typing import Any


def data_module(name: str) -> Any:
    """Return a module of ``data``."""
    return importlib.import_module(f"qkvary.data.{name}")
