"""The benchmarks that are verbs: scripts, which a wheel contains as ``qkvary/benchmarks``."""

import importlib
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "benchmarks", PACKAGE.parents[1] / "benchmarks")


def load_verb(script: str, name: str) -> Any:
    """Return the verb that a script defines, as one of ``api/NAME.py``."""
    folder = str(next(one for one in FOLDERS if (one / "decoding").is_dir()))
    # First, so that a module of that name in the caller's folder is not taken for the script.
    sys.path.insert(0, folder)
    try:
        verb = getattr(importlib.import_module(script), name)
    finally:
        sys.path.remove(folder)
    verb.__module__ = f"{__package__}.{name}"
    return verb
