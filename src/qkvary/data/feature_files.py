"""Files of image features that are made on this machine. Imports neither numpy nor torch."""

import hashlib
from contextlib import suppress
from pathlib import Path

from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.files import find_file
from qkvary.storage.errors import UsageError
from qkvary.storage.folders import cache_directory

FOLDER = "features"
"""The folder of the files below ``QKVARY_DATA`` or the cache."""


def find_features(name: str) -> Path | None:
    """Return the file of a set on this machine, None if there is none."""
    return find_file(FOLDER, f"{name}.safetensors")


def features_path(name: str) -> Path:
    """Return the path at which ``qkvary data features`` writes a set.

    Raises:
        UsageError: if there is neither a cache nor a home directory.
    """
    folder = cache_directory()
    if folder is None:
        raise UsageError("expected a cache directory for features: set QKVARY_CACHE")
    return folder / FOLDER / f"{name}.safetensors"


def hash_features(name: str) -> str | None:
    """Return the sha256 of a set's file; None if it is not made here, or not on this machine.

    It does not check the file: who reads the features does.
    """
    path = find_features(name) if FEATURE_SETS[name].is_made_here else None
    if path is not None:
        with suppress(OSError), path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return None
