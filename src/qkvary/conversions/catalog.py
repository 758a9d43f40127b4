"""Finds rewrites by file name: every module of ``conversions.rewrites``.

A rewrite's name is the file's name. Torch-free until a rewrite is loaded.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from qkvary.storage.errors import UsageError
from qkvary.storage.paths import read_name
from qkvary.text.names import suggest

if TYPE_CHECKING:
    from qkvary.conversions.draft import Draft, RewriteOptions, Rewritten

_FOLDER = Path(__file__).parent / "rewrites"


class Rewrite(Protocol):
    """The interface of every module in ``rewrites``."""

    STATEMENT: str
    """The theorem or proposition that it applies."""

    def rewrite(self, draft: "Draft", options: "RewriteOptions", /) -> "Rewritten":
        """Return the new network.

        Args:
            draft: The network, in float64; it may be changed in place.
            options: The options of the user.

        Raises:
            UsageError: if a condition does not hold.
        """
        ...


def rewrite_names() -> tuple[str, ...]:
    """Return the names of all rewrites, sorted."""
    stems = (path.stem for path in _FOLDER.glob("*.py"))
    return tuple(sorted(stem.replace("_", "-") for stem in stems if stem[0] != "_"))


def load_rewrite(name: str) -> Rewrite:
    """Return the module of a rewrite.

    Raises:
        UsageError: for an unknown name.
    """
    name = read_name(name, "the name of a rewrite")
    if name not in rewrite_names():
        raise UsageError(f"unknown rewrite {name!r}; {suggest(name, rewrite_names())}")
    return cast("Rewrite", import_module(f"qkvary.conversions.rewrites.{name.replace('-', '_')}"))
