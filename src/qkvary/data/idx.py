"""The IDX layout of MNIST: a big-endian header, then the bytes of an array."""

import math

import numpy as np
from numpy.typing import NDArray

from qkvary.storage.errors import DamagedError

_BYTES = 8
"""The code of unsigned bytes; other types do not occur here."""
_LARGEST_RANK = 4


def read_idx(data: bytes, where: str) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes.

    Args:
        data: The uncompressed file.
        where: Its name, for messages.

    Raises:
        DamagedError: if it has another layout or another size than its header says.

    Source: http://yann.lecun.com/exdb/mnist
    """
    start = data[:4]
    if len(start) < 4 or start[:2] != b"\0\0" or not 1 <= start[3] <= _LARGEST_RANK:
        raise DamagedError(f"expected an IDX file in {where}, got one that begins {start.hex(' ')}")
    if start[2] != _BYTES:
        raise DamagedError(f"expected unsigned bytes (type 8) in {where}, got type {start[2]}")
    header = 4 + 4 * start[3]
    if len(data) < header:
        raise DamagedError(f"expected a header of {header} bytes in {where}, got {len(data)} bytes")
    sizes = [int(size) for size in np.frombuffer(data[4:header], ">u4")]
    expected = header + math.prod(sizes)
    if len(data) != expected:
        raise DamagedError(
            f"expected {expected:,} bytes in {where} by its header, got {len(data):,}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(sizes)
