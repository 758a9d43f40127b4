"""Measure decoding: memory and speed per variant, beside transformers and without a cache.

The measurement is a script: ``benchmarks/decoding`` of the repository, which a wheel has as
``qkvary/benchmarks``.
"""

import importlib
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "benchmarks", PACKAGE.parents[1] / "benchmarks")

sys.path.append(str(next(folder for folder in FOLDERS if (folder / "decoding").is_dir())))
command = importlib.import_module("decoding.run").command
