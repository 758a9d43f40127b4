"""Loads studies: built-in studies by file name, a user's own studies by path.

A study is a Python file with a ``STUDY``; the built-in studies are the files
``papers/*/studies/*.py``. A file with several protocols (versions of its study) has ``PROTOCOLS``,
which maps the name of each protocol to a study. Such a study is called ``<name>-<protocol>``; only
the study that is also ``STUDY`` is called ``<name>``. Torch is loaded only if the file of the study
imports torch.
"""

import functools
import importlib
import importlib.util
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType

from qkvary.arch.canonical import import_file
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import describe_missing, is_installed
from qkvary.storage.untrusted_files import StrPath, read_name
from qkvary.studies.study import Study
from qkvary.text.names import brief, find_name, spell, suggest

_PAPERS = "qkvary.papers"


def study_names() -> tuple[str, ...]:
    """Return the names of the built-in studies, sorted."""
    return tuple(sorted(_definitions()))


@functools.cache
def _definitions() -> Mapping[str, str]:
    """Return the modules of the built-in studies by name."""
    spec = importlib.util.find_spec(_PAPERS)
    roots = spec.submodule_search_locations if spec else None
    return {
        spell(file.stem): f"{_PAPERS}.{file.parents[1].name}.studies.{file.stem}"
        for root in roots or ()
        for file in Path(root).glob("*/studies/[!_]*.py")
    }


def load_study(
    name: StrPath, protocol: str | None = None, others: Callable[[], Iterable[str]] = tuple
) -> Study:
    """Return a built-in study by name, or a user's study by the path of its file.

    If a task needs a fingerprint of its data and states none, the fingerprint is computed from the
    data on this machine. ``others`` returns further names that the caller accepts; the error for an
    unknown name lists them first.
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
        f"{suggest(name, (*others(), *study_names()))}"
    )


def _import_definition(name: str) -> ModuleType:
    return importlib.import_module(_definitions()[name])


def _import_file(path: Path) -> ModuleType:
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"expected a Python file NAME.py with a STUDY, got {path}")
    try:
        return import_file(path)
    except Exception as error:
        raise UsageError(f"{path} is not a study: {_reason(error, path)}") from error


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
            choices = suggest(protocol, protocols) if protocols else "this study has one protocol"
            raise UsageError(
                f"expected a protocol of the study {where}, got {protocol!r}; {choices}"
            )
        study = protocols[known]
    if not isinstance(study, Study):
        raise UsageError(f"expected a STUDY in {where} that is a qk.Study, got {brief(study)}")
    return study.pinned()
