"""Loads studies: built-in ones by file name, a user's own by path.

A study is a Python file with a ``STUDY``. Torch-free if the file is. A file with several protocols
has ``PROTOCOLS``, which maps the name of each protocol to its study: ``STUDY``, and others that are
called ``<name>-<protocol>``.
"""

import importlib
import importlib.util
import pkgutil
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

import qkvary.studies.definitions
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import describe_missing, is_installed
from qkvary.storage.paths import StrPath, read_name
from qkvary.studies.study import Study
from qkvary.tasks.config import AnomalyTaskConfig
from qkvary.text.names import find_name, spell, suggest


def study_names() -> tuple[str, ...]:
    """Return the names of the built-in studies, sorted."""
    found = pkgutil.iter_modules(qkvary.studies.definitions.__path__)
    return tuple(sorted(spell(item.name) for item in found))


def load_study(name: StrPath, protocol: str | None = None) -> Study:
    """Return a study, with the sha256 of image features that were made on this machine.

    Args:
        name: The name of a built-in study, or the path of a Python file with a ``STUDY``.
        protocol: One of the study's protocols; by default that of its ``STUDY``.

    Raises:
        UsageError: if there is no such study (with the nearest name) or protocol, or if its file is
            invalid.
    """
    name = read_name(name, "the name of a study or the path of its file")
    if name.endswith(".py") or "/" in name:
        return _take_study(_import_file(Path(name)), name, protocol)
    names = study_names()
    known = find_name(name, names)
    if known is not None:
        return _take_study(_import_definition(known), name, protocol)
    for base in names:
        if protocol is None and spell(name).startswith(f"{base}-"):
            module, rest = _import_definition(base), spell(name)[len(base) + 1 :]
            if rest in getattr(module, "PROTOCOLS", {}):
                return _take_study(module, base, rest)
    raise UsageError(
        f"expected a study or the path of its Python file, got {name!r}; "
        f"{suggest(name, study_names())}"
    )


def _import_definition(name: str) -> ModuleType:
    return importlib.import_module(
        f"{qkvary.studies.definitions.__name__}.{name.replace('-', '_')}"
    )


def _import_file(path: Path) -> ModuleType:
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
    return module


def _reason(error: Exception, path: Path) -> str:
    """Return the error in one line, with the line number in the user's file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    said, line = str(error), lines[-1] if lines else None
    if isinstance(error, SyntaxError) and error.filename == str(path):
        said, line = error.msg, error.lineno
    place = f" (line {line})" if line else ""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and not is_installed(missing.partition(".")[0]):
        return f"{describe_missing(missing)}{place}"
    return f"{type(error).__name__}: {said}{place}"


def _take_study(module: ModuleType, where: str, protocol: str | None) -> Study:
    study = getattr(module, "STUDY", None)
    if protocol is not None:
        protocols: Mapping[str, object] = getattr(module, "PROTOCOLS", {})
        known = find_name(protocol, protocols)
        if known is None:
            choices = suggest(protocol, protocols) if protocols else "it has only one"
            raise UsageError(
                f"expected a protocol of the study {where}, got {protocol!r}; {choices}"
            )
        study = protocols[known]
    if not isinstance(study, Study):
        raise UsageError(f"expected a STUDY in {where} that is a qk.Study, got {study!r}")
    return _pin_features(study)


def _pin_features(study: Study) -> Study:
    """Return a study with the sha256 of the image features that it reads, if it reads any."""
    tasks = [setting.task for setting in study.settings]
    if not any(isinstance(task, AnomalyTaskConfig) for task in tasks):
        return study
    module = importlib.import_module("qkvary.studies.set_anomaly")
    return cast("Study", module.pin_features(study))
