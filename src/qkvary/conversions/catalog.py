"""Finds exact conversions in ``rewrites``, and conversions to smaller caches in ``caches.methods``.

Every conversion is named after its file. Importing this module does not import torch; loading a
conversion does.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_name
from qkvary.text.names import suggest

if TYPE_CHECKING:
    from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten

_HERE = Path(__file__).parent
REWRITES, METHODS = "rewrites", "caches.methods"
BY_LAYER = ("latent", "shared")
"""The methods that compute a spectrum, so that they can choose a size for each layer."""


def rewrite_names() -> tuple[str, ...]:
    """Return the names of all rewrites, sorted."""
    return _names(REWRITES)


def load_rewrite(name: str) -> "Callable[[Draft, RewriteOptions], Rewritten]":
    """Return the function of a rewrite; the function may change its draft in place."""
    return _load("rewrite", name, REWRITES).rewrite


def method_names() -> tuple[str, ...]:
    """Return the names of all methods that make the cache smaller, sorted."""
    return _names(METHODS)


def load_method(name: str) -> ModuleType:
    """Return the module of a method that makes the cache smaller.

    Its ``STATEMENT`` describes the new form of a layer in a clause. ``choose(layer, numbers)``
    returns the configuration of a layer that caches at most ``numbers`` values per token.
    ``convert(maps, config)`` returns the weights of that layer.
    """
    return _load("method", name, METHODS)


def _names(folder: str) -> tuple[str, ...]:
    stems = (path.stem for path in _HERE.joinpath(*folder.split(".")).glob("*.py"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems if stem[0] != "_"))


def _load(kind: str, name: str, folder: str) -> ModuleType:
    name, names = read_name(name, f"the name of a {kind}"), _names(folder)
    if name not in names:
        raise UsageError(f"unknown {kind} {name!r}; {suggest(name, names)}")
    return import_module(f"qkvary.conversions.{folder}.{name.replace('-', '_')}")
