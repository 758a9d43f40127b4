"""Files that somebody else wrote: read whole, of a limited size, and never through pickle.

Torch-free; knows nothing of what the bytes mean.
"""

import stat
from pathlib import Path

from qkvary.storage.errors import DamagedError, UnsafeError, UsageError

LARGEST_WEIGHTS = 2**40
"""Bytes; a file beyond is a mistake."""
LARGEST_SIDE_FILE = 2**26
"""Bytes of a configuration or a tokenizer."""
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLED = {".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".distcp", ".t7"}
_PICKLED_NAMES = ("pytorch_model.bin", "consolidated.pth", ".metadata")
_LOOK_BYTES = 4096


def read_file(path: Path, *, limit: int = LARGEST_WEIGHTS) -> bytes:
    """The bytes of a file.

    Args:
        path: The file.
        limit: Bytes that it has at most.

    Raises:
        UsageError: if it is no file, or cannot be read.
        DamagedError: if it is larger.
        UnsafeError: if it is a pickle or an archive of pickles.
    """
    try:
        found = path.stat()
        # A pipe or a device would never end.
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"expected a file, got {path}, which is none")
        if found.st_size > limit:
            raise DamagedError(f"{path} has {found.st_size:,} bytes, more than {limit:,}")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if data.startswith(_PICKLES) or _is_named_as_one(path):
        raise _pickled(path)
    return data


def refuse_pickles(path: Path) -> None:
    """Refuse a file that is a pickle, or a folder that holds one, by names and first bytes.

    For what no reader has recognised: the reason is then told instead of a list of formats.

    Raises:
        UnsafeError: if it is one.
    """
    candidates = sorted(path.iterdir()) if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file() and _seems_pickled(candidate):
            raise _pickled(candidate)


def _seems_pickled(path: Path) -> bool:
    if _is_named_as_one(path):
        return True
    with path.open("rb") as file:
        start = file.read(_LOOK_BYTES)
    # The oldest protocol is text: a global, called, and a full stop at the end.
    is_text_pickle = start[:1] in {b"c", b"("} and b"\n" in start and b"R" in start
    return start.startswith(_PICKLES) or (is_text_pickle and b"." in start[-1:])


def _is_named_as_one(path: Path) -> bool:
    return path.suffix.lower() in _PICKLED or path.name.startswith(_PICKLED_NAMES)


def _pickled(path: Path) -> UnsafeError:
    return UnsafeError(
        f"{path} is a pickle, which runs whatever it holds: convert it to safetensors where "
        "that does no harm"
    )
