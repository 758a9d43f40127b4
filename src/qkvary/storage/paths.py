"""Paths and names as callers give them: text, or any path of the standard library's protocol."""

from __future__ import annotations

import os
from pathlib import Path

from qkvary.storage.errors import UsageError

StrPath = str | os.PathLike[str]
"""A path, or a name where there are names."""


def read_name(given: object, expected: str) -> str:
    """Return a name or path as text.

    Args:
        given: The argument of a caller.
        expected: What it should be, for the message.

    Raises:
        UsageError: for anything but text and paths.
    """
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(name, str):
        found = " ".join(repr(given).split())
        raise UsageError(f"expected {expected}, got {found}"[:200])
    return name


def read_path(given: object, expected: str = "a path") -> Path:
    """Return a path, with ``~`` replaced by the home folder.

    Args:
        given: The argument of a caller.
        expected: What it should be, for the message.

    Raises:
        UsageError: as :func:`read_name`, and if there is no home folder.
    """
    path = Path(read_name(given, expected))
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(f"expected {expected}, got {path}: {error}") from None
