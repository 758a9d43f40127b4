"""Imports modules of ``qkvary.data`` by name, when they are first used. Does not import torch."""

import importlib
from typing import Any


def data_module(name: str) -> Any:
    """Return the module of ``qkvary.data`` with the given name."""
    return importlib.import_module(f"qkvary.data.{name}")
