"""Exports of checkpoints for engines: their folder, their names, and when one is needed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from qkvary.storage.environment import cache_directory, package_version
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, parse_json, read_file

Weights = Literal["f32", "f16", "bf16", "q8_0"]
EXPORTS = 2
"""A number in the names of exports. It must be increased whenever a change of the code changes the
exports but not the package version."""
CONFIG = "config.json"
OWN = "QKVForCausalLM"
"""The model class of exports that only transformers can read, and only with qkvary installed."""


def is_stock_folder(path: Path) -> bool:
    """Return whether engines can read a Hugging Face folder as it is, without an export."""
    try:
        config = parse_json(read_file(path / CONFIG, limit=MAX_SIDE_FILE_BYTES))
    except (QkvaryError, ValueError):
        return False
    names = config.get("architectures") if isinstance(config, Mapping) else None
    return isinstance(names, list) and bool(names) and OWN not in names


def served_folder() -> Path:
    """Return the folder of exports and logs."""
    found = cache_directory()
    if found is None:
        raise UsageError("expected a cache directory for exports, got none: set QKVARY_CACHE")
    return found / "served"


def name_export(source: Path, *choices: object) -> str:
    """Return a name for an export.

    The name changes with the files of the checkpoint and with the choices of the export.
    """
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    found = [
        (str(one.relative_to(source)), one.stat().st_size, one.stat().st_mtime_ns)
        for one in files
        if one.is_file()
    ]
    # Another version may export differently.
    version = package_version("qkvary")
    told = json.dumps([version, EXPORTS, str(source.resolve()), found, *map(str, choices)])
    return f"{source.stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
