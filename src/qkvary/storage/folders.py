"""The folders of local data sets and of the cache."""

import os
from pathlib import Path


def data_root() -> Path | None:
    """Return the folder of local data sets, ``$QKVARY_DATA``."""
    named = os.environ.get("QKVARY_DATA")
    return Path(named) if named else None


def cache_directory() -> Path | None:
    """Return the cache directory: ``$QKVARY_CACHE``, or ``qkvary`` in the user's cache directory.

    Returns:
        ``None`` if the user has no home directory.
    """
    for name, below in (("QKVARY_CACHE", "."), ("XDG_CACHE_HOME", "qkvary")):
        if os.environ.get(name):
            return Path(os.environ[name]) / below
    try:
        return Path.home() / ".cache" / "qkvary"
    except RuntimeError:
        return None
