"""Checkpoints of every format that can be read: the project's own, and a file per other one.

Torch-free until a checkpoint is loaded, so that a command line can be read without it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from qkvary.storage.errors import UsageError
from qkvary.storage.manifest import MANIFEST_NAME, read_manifest
from qkvary.storage.untrusted_files import refuse_pickles

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel

EXPORT_KIND = "transformers export"
"""What the manifest of a folder says that was written for transformers."""

_FOLDER = Path(__file__).parent / "formats"


class Conversion(Protocol):
    """The interface of every file in ``formats``."""

    @property
    def FORMAT(self) -> str:  # noqa: N802  a constant of a module
        """What the format is called, and which files it consists of."""
        ...

    def recognises(self, path: Path) -> bool:
        """Whether a file or folder is of this format, by its names and a look inside."""
        ...

    def load(self, path: Path) -> LoadedModel:
        """Read it.

        Raises:
            DamagedError: if it is not what it should be.
        """
        ...


def conversion_names() -> tuple[str, ...]:
    """The formats that there are a file for."""
    stems = (path.stem for path in _FOLDER.glob("*.py"))
    return tuple(sorted(stem for stem in stems if stem[0] != "_"))


def load_conversion(name: str) -> Conversion:
    """The module of a format."""
    return cast("Conversion", import_module(f"qkvary.checkpoints.formats.{name}"))


def is_export(path: Path) -> bool:
    """Whether a folder with a manifest was written for transformers.

    Raises:
        DamagedError: if the manifest is none.
    """
    return read_manifest(path).about.get("kind") == EXPORT_KIND


def load_checkpoint(path: Path) -> LoadedModel:
    """Read a language model and its tokenizer, whatever the format.

    Args:
        path: A file, or the folder of a model.

    Returns:
        The network and its tokenizer, or ``None`` where the checkpoint has none.

    Raises:
        UsageError: if there is nothing, or nothing of a known format.
        DamagedError: if it is of a known format, and not what it should be.
        UnsafeError: if reading it would run what it holds.
    """
    if not path.exists():
        raise UsageError(f"expected a checkpoint, got {path}, where there is nothing")
    if (path / MANIFEST_NAME).is_file() and not is_export(path):
        return import_module("qkvary.checkpoints.models").load_model(path)
    found = [load_conversion(name) for name in conversion_names()]
    for conversion in found:
        if conversion.recognises(path):
            return conversion.load(path)
    refuse_pickles(path)
    known = "; ".join(conversion.FORMAT for conversion in found)
    raise UsageError(
        f"expected a checkpoint of a known format, got {path}; choices: a folder that save_model "
        f"wrote; {known}"
    )
