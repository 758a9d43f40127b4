"""Classes from a user's own file: their import, their versions, and what costs leave out.

Nothing is loaded by pickle: only files that the user names are imported. Torch-free.
"""

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from qkvary.arch.terms import OWN
from qkvary.arch.variants import Variant

PACKAGE = __name__.partition(".")[0]
PREFIX = f"{PACKAGE}_own_"
"""Prefix of the module names of imported files."""


def import_file(path: Path) -> ModuleType:
    """Import a Python file, which may register classes; an error in it is raised unchanged."""
    name = PREFIX + path.absolute().as_posix().encode().hex()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module by name.
    before, sys.modules[name] = sys.modules.get(name), module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    return module


def import_code(code: Iterable[str]) -> None:
    """Import modules by name, and files by path, that this process has not imported yet."""
    for one in code:
        if one.endswith(".py"):
            if PREFIX + one.encode().hex() not in sys.modules:
                import_file(Path(one))
        else:
            importlib.import_module(one)


def own_classes(network: Any, *others: object) -> tuple[type[Any], ...]:
    """Return the classes from outside this package that a network or another value is made of."""
    names = dict.fromkeys(layer.variant.own for layer in network.layers if layer.variant.own)
    kinds = [OWN[name].made for name in names] + [type(one) for one in (network, *others)]
    return tuple(kind for kind in kinds if kind.__module__.partition(".")[0] != PACKAGE)


def code_of(classes: Iterable[type[Any]]) -> tuple[str, ...]:
    """Return the files and modules that another process must import to have these classes."""
    found = dict[str, None]()
    for kind in classes:
        name = kind.__module__
        is_file = name.startswith(PREFIX)
        found[bytes.fromhex(name.removeprefix(PREFIX)).decode() if is_file else name] = None
    return tuple(found)


@functools.cache
def version_of(kind: type[Any]) -> str:
    """Return the version of a class: the ``version`` that it states, or the sha256 of its file."""
    stated = getattr(kind, "version", None)
    if isinstance(stated, str | int):
        return str(stated)
    try:
        path = inspect.getsourcefile(kind)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise ValueError(
            f"expected a version of {kind.__name__}, which is in no file, got none; give the class "
            'one, such as version = "1", and change it whenever its numbers change'
        )
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def not_counted(network: Any) -> tuple[str, ...]:
    """Return the parts of a network that costs leave out because their cost is unknown."""
    parts, kind = own_parts(layer.variant for layer in network.layers), type(network)
    is_own = kind.__module__.partition(".")[0] != PACKAGE
    return (*parts, *([f"what {kind.__name__} adds to its blocks"] * is_own))


def own_parts(variants: Iterable[Variant]) -> tuple[str, ...]:
    """Return the parts from users' files that the variants contain, each with its meaning."""
    names = dict.fromkeys(one.own for one in variants if one.own is not None)
    return tuple(f"{name} ({OWN[name].words})" for name in names)
