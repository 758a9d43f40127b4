"""Checkpoints by name: the small models of this package, and those below ``QKVARY_DATA``.

Torch-free; what a checkpoint contains is read elsewhere.
"""

from pathlib import Path

from qkvary.data.folders import data_root
from qkvary.storage.errors import UsageError
from qkvary.text.names import find_name, suggest

PACKAGED = Path(__file__).parent / "models"
"""The folder of the packaged models."""
FOLDER = "checkpoints"
"""The folder of checkpoints below ``QKVARY_DATA``."""
_ELSEWHERE = {
    "stories260K": "stories260K.bin and tok512.bin of https://huggingface.co/karpathy/tinyllamas",
}
"""Files of checkpoints that are not packaged, and where to get them."""


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


def find_checkpoint(reference: str | Path) -> Path:
    """Return the file or folder of a checkpoint.

    Args:
        reference: Its path, or a name; an existing path comes first.

    Raises:
        UsageError: if it does not exist; the message says where to get one that has a name.
    """
    path, name = Path(reference).expanduser(), str(reference)
    if path.exists():
        return path
    packaged, root = find_packaged(name), data_root()
    if packaged is not None:
        return packaged
    known = find_name(name, (*checkpoint_names(), *_ELSEWHERE))
    if root is not None and known in checkpoint_names():
        return root / FOLDER / str(known)
    if known is not None:
        raise UsageError(
            f"expected a checkpoint, got {name}, which is not on this machine: put "
            f"{_ELSEWHERE[known]} into {FOLDER}/{known} of the folder QKVARY_DATA"
        )
    hint = "" if path.parent.name else f"; {suggest(name, (*checkpoint_names(), *_ELSEWHERE))}"
    raise UsageError(f"expected a checkpoint, got {path}, which does not exist{hint}")
