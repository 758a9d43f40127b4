"""Finds studies: those that ship by the name of their file, a user's own by the path of theirs.

A study is a Python file with a ``STUDY``. Torch-free as long as the file is.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import qkvary.studies.definitions
from qkvary.inference.benchmark.records import DecodeQuestion, DecodeRecord
from qkvary.storage.errors import UsageError
from qkvary.studies.study import Study
from qkvary.text.names import suggest


class DecodeMeasurement(Protocol):
    """What ``decode_measurements`` offers."""

    def measure(
        self, question: DecodeQuestion, *, command: str, tell: Callable[[str], None]
    ) -> DecodeRecord:
        """Measure everything that is asked for."""
        ...


def study_names() -> tuple[str, ...]:
    """The names of the studies that ship, sorted."""
    found = pkgutil.iter_modules(qkvary.studies.definitions.__path__)
    return tuple(sorted(_spell(item.name) for item in found))


def load_study(name: str) -> Study:
    """Return a study.

    Args:
        name: The name of a study that ships, or the path of a Python file with a ``STUDY``.

    Raises:
        UsageError: if there is no such study (with the nearest name), or if its file is not one.
    """
    if name.endswith(".py") or "/" in name:
        return _load_file(Path(name))
    if _spell(name) in study_names():
        stem = _spell(name).replace("-", "_")
        module = importlib.import_module(f"{qkvary.studies.definitions.__name__}.{stem}")
        return _take_study(module, name)
    raise UsageError(
        f"expected a study or the path of its Python file, got {name!r}; "
        f"{suggest(_spell(name), study_names())}"
    )


def _spell(name: str) -> str:
    return name.lower().replace("_", "-")


def _load_file(path: Path) -> Study:
    if not path.is_file():
        raise UsageError(f"expected a Python file with a STUDY, got {path}, which is no file")
    spec = importlib.util.spec_from_file_location(f"qkvary_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(
            f"expected a Python file with a STUDY, got {path}: its name must end in .py"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} is not a study: {_reason(error, path)}") from error
    return _take_study(module, str(path))


def _reason(error: Exception, path: Path) -> str:
    """The error in a line, with the line of the user's file that it comes from."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    place = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {error}{place}"


def _take_study(module: ModuleType, where: str) -> Study:
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise UsageError(
            f"expected STUDY in {where} to be a qkvary.studies.study.Study, got {study!r}"
        )
    return study


def load_decode_measurement() -> DecodeMeasurement:
    """``decode_measurements``, which needs torch."""
    module = importlib.import_module("qkvary.inference.benchmark.measurements")
    return cast("DecodeMeasurement", module)


def load_together() -> ModuleType:
    """``together``, which makes runs in this process; needs torch."""
    return importlib.import_module("qkvary.studies.running.together")


def load_processes() -> ModuleType:
    """``training.parallel``, which finds the processes that torchrun started; needs torch."""
    return importlib.import_module("qkvary.training.parallel")
