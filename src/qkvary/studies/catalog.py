"""Loads studies: built-in ones by file name, a user's own by path.

A study is a Python file with a ``STUDY``. Torch-free if the file is.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import traceback
from pathlib import Path
from types import ModuleType

import qkvary.studies.definitions
from qkvary.storage.errors import UsageError
from qkvary.studies.study import Study
from qkvary.text.names import find_name, spell, suggest


def study_names() -> tuple[str, ...]:
    """Return the names of the built-in studies, sorted."""
    found = pkgutil.iter_modules(qkvary.studies.definitions.__path__)
    return tuple(sorted(spell(item.name) for item in found))


def load_study(name: str) -> Study:
    """Return a study.

    Args:
        name: The name of a built-in study, or the path of a Python file with a ``STUDY``.

    Raises:
        UsageError: if there is no such study (with the nearest name), or if its file is invalid.
    """
    if name.endswith(".py") or "/" in name:
        return _load_file(Path(name))
    known = find_name(name, study_names())
    if known is not None:
        stem = known.replace("-", "_")
        module = importlib.import_module(f"{qkvary.studies.definitions.__name__}.{stem}")
        return _take_study(module, name)
    raise UsageError(
        f"expected a study or the path of its Python file, got {name!r}; "
        f"{suggest(name, study_names())}"
    )


def _load_file(path: Path) -> Study:
    if not path.is_file():
        raise UsageError(f"expected a Python file with a STUDY, got {path}, which is not a file")
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
    """Return the error in one line, with the line number in the user's file."""
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
