"""The benchmarks that are commands: scripts, which a wheel contains as ``qkvary/benchmarks``."""

import importlib
import sys
from pathlib import Path
from typing import Any

from qkvary.cli.app import make_command

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "benchmarks", PACKAGE.parents[1] / "benchmarks")


def load_command(script: str, function: str) -> Any:
    """Return the command of a function in a script."""
    folder = str(next(one for one in FOLDERS if (one / "decoding").is_dir()))
    if folder not in sys.path:
        sys.path.append(folder)
    return make_command(getattr(importlib.import_module(script), function))
