"""Finds checkpoints by name: packaged models, checkpoints below ``QKVARY_DATA``, and trained runs.

This module does not read the contents of checkpoints, and does not import torch.
"""

import re
from pathlib import Path

from qkvary.storage.environment import data_root
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import StrPath, read_name, read_path
from qkvary.text.names import find_name, suggest

PACKAGED = Path(__file__).parent / "models"
FOLDER = "checkpoints"
"""The folder of checkpoints in ``QKVARY_DATA``."""
RUNS = Path("runs")
"""The default folder of runs; each run is in ``<first two digits of its key>/<key>``."""
NETWORK_NAME = "network"
"""The folder of the trained network, inside the folder of its run."""
_RUN_KEY = re.compile(r"[0-9a-f]{64}")
_KEY_START = re.compile(r"[0-9a-f]{1,64}")


def packaged_names() -> tuple[str, ...]:
    """Return the names of the packaged models, sorted."""
    return tuple(sorted(path.parent.name for path in PACKAGED.glob("*/MANIFEST.json")))


def checkpoint_names() -> tuple[str, ...]:
    """Return the names of all checkpoints on this machine, the packaged ones first."""
    root = data_root()
    found = [] if root is None else sorted((root / FOLDER).glob("*/"))
    return (*packaged_names(), *(path.name for path in found))


def find_packaged(name: str) -> Path | None:
    """Return the folder of a packaged model by its name in any spelling, or ``None``."""
    known = find_name(name, packaged_names())
    return None if known is None else PACKAGED / known


def find_checkpoint(reference: StrPath) -> Path:
    """Return the file or folder of a checkpoint, given its path or its name.

    An existing path takes precedence over a name. A run's network is found by the run's folder or
    by the start of the run's key: ``START`` is looked up in ``runs``, and ``FOLDER/START`` in
    ``FOLDER``.
    """
    name = read_name(reference, "the name or path of a checkpoint")
    path = read_path(name)
    if path.exists():
        # Reading a pipe or a device might never end.
        if not (path.is_file() or path.is_dir()):
            raise UsageError(f"expected a file or folder, got {path}, which is neither")
        return _network_of(path) if _RUN_KEY.fullmatch(path.name) else path
    packaged, root = find_packaged(name), data_root()
    if packaged is not None:
        return packaged
    names = checkpoint_names()
    known = find_name(name, names)
    if root is not None and known is not None:
        return root / FOLDER / known
    run = find_run(path)
    if run is not None:
        return _network_of(run)
    hint = "" if path.parent.name else f"; {suggest(name, names)}"
    if _KEY_START.fullmatch(name):
        hint += f"; a run in another folder is named FOLDER/{name}"
    raise UsageError(f"expected a checkpoint, got {path}, which does not exist{hint}")


def find_run(path: Path, runs: Path = RUNS) -> Path | None:
    """Return the folder of a run, or ``None``.

    ``path`` is the folder of the run, or ``FOLDER/START``, where ``FOLDER`` is a folder of runs and
    ``START`` is the start of the run's key. Without ``FOLDER``, the run is looked up in ``runs``.
    """
    if _RUN_KEY.fullmatch(path.name) and path.is_dir():
        return path
    start, folder = path.name.lower(), path.parent if path.parent.name else runs
    if not _KEY_START.fullmatch(start):
        return None
    matches = folder.glob(f"{start[:2]:?<2}/{start}*")
    found = [one for one in matches if _RUN_KEY.fullmatch(one.name)]
    if len(found) > 1:
        raise UsageError(f"{len(found)} runs in {folder} start with {start!r}; give a longer key")
    return found[0] if found else None


def _network_of(run: Path) -> Path:
    """Return the path of the folder that holds the network of a run."""
    if not (run / NETWORK_NAME).is_dir():
        raise UsageError(
            f"expected a run with a stored network, got the run {run.name[:12]}, which has no "
            "stored network: the run is not finished, or its study keeps no networks"
        )
    return run / NETWORK_NAME
