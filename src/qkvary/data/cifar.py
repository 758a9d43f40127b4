"""The binary layout of CIFAR-10 and CIFAR-100: records of labels and pixels."""

import numpy as np
from numpy.typing import NDArray

from qkvary.storage.errors import DamagedError

_PIXELS = 3 * 32 * 32


def read_cifar(
    data: bytes, where: str, *, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images and labels of a file.

    CIFAR-10 has one label per record; CIFAR-100 has a coarse one, which is skipped, and a fine one.

    Args:
        data: The uncompressed file.
        where: Its name, for messages.
        classes: 10 or 100.

    Returns:
        Images, ``[count, 3, 32, 32]``, and labels, ``[count]``.

    Raises:
        DamagedError: if it is empty or not a whole number of records.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    labels = 1 if classes == 10 else 2
    record = labels + _PIXELS
    if not data or len(data) % record:
        raise DamagedError(
            f"expected records of {record:,} bytes in {where}, got {len(data):,} bytes"
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, record)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64)
