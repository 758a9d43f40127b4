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
    if folder not in sys.path:
        sys.path.append(folder)
    verb = getattr(importlib.import_module(script), name)
    verb.__module__ = f"{__package__}.{name}"
    return verb
