"""Finds methods by file name: every module of ``conversions.caches.methods``.

A method's name is the file's name. Torch-free until a method is loaded.
"""

from importlib import import_module
from pathlib import Path
from typing import cast

from qkvary.conversions.caches.method import Method
from qkvary.storage.errors import UsageError
from qkvary.storage.paths import read_name
from qkvary.text.names import suggest

_FOLDER = Path(__file__).parent / "methods"


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, sorted."""
    stems = (path.stem for path in _FOLDER.glob("*.py"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems if stem[0] != "_"))


def load_method(name: str) -> Method:
    """Return the module of a method.

    Raises:
        UsageError: for an unknown name.
    """
    name = read_name(name, "the name of a method")
    if name not in method_names():
        raise UsageError(f"unknown method {name!r}; {suggest(name, method_names())}")
    path = f"qkvary.conversions.caches.methods.{name.replace('-', '_')}"
    return cast("Method", import_module(path))
