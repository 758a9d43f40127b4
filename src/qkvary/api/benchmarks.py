"""Loads verbs (commands) from the benchmark scripts.

In a wheel, these scripts are in ``qkvary/benchmarks``.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "benchmarks", PACKAGE.parents[1] / "benchmarks")


def load_verb(script: str, name: str) -> Any:
    """Return the function ``name`` of a script, with its module set to ``qkvary.api.NAME``."""
    folder = str(next(one for one in FOLDERS if (one / "decoding").is_dir()))
    # First, so that a module in the caller's folder with the script's name is not imported.
    sys.path.insert(0, folder)
    try:
        verb = getattr(importlib.import_module(script), name)
    finally:
        sys.path.remove(folder)
    verb.__module__ = f"{__package__}.{name}"
    return verb
