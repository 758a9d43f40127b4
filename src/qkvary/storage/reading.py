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
    if data.startswith(_PICKLES):
        raise UnsafeError(
            f"{path} is a pickle, which runs whatever it holds: convert it to safetensors where "
            "that does no harm"
        )
    return data
