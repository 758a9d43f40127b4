"""Measure on this machine.

A group of commands: ``bench NAME`` is the file ``_bench_NAME.py`` of this folder, which is imported
when it is called. The measurements are scripts: ``benchmarks`` of the repository, which a wheel has
as ``qkvary/benchmarks``.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from qkvary.cli.main import build_group

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "benchmarks", PACKAGE.parents[1] / "benchmarks")

command = build_group("bench", "_bench_")


def load_command(script: str) -> Any:
    """Return the command of a script."""
    folder = str(next(one for one in FOLDERS if (one / "decoding").is_dir()))
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(script).command
