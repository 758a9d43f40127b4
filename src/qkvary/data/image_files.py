"""Reads labelled images from files: IDX (MNIST), CIFAR, PNG and JPEG."""

import io
import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.storage.errors import DamagedError

_IDX_BYTES = b"\0\0\x08"
"""The beginning of an IDX file of unsigned bytes, the only type that occurs here."""
_LARGEST_RANK = 4


class Images(NamedTuple):
    """Images with their labels, in the order in which the files list them."""

    pixels: NDArray[np.uint8]
    """``[count, channels, size, size]``, read-only."""
    labels: NDArray[np.int64]
    """``[count]``, from 0 to ``classes - 1``."""


class LoadedImages(NamedTuple):
    """The images of a data set."""

    train: Images
    test: Images
    classes: tuple[str, ...] = ()
    """The names of the classes; empty if the files contain no names."""


def freeze(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Images:
    """Return images whose arrays cannot be changed."""
    pixels.flags.writeable = labels.flags.writeable = False
    return Images(pixels, labels)


def read_idx(data: bytes, where: str) -> NDArray[np.uint8]:
    """Return the array of an uncompressed IDX file of unsigned bytes.

    Source: http://yann.lecun.com/exdb/mnist
    """
    start = data[:4]
    if len(start) < 4 or start[:3] != _IDX_BYTES or not 1 <= start[3] <= _LARGEST_RANK:
        raise DamagedError(
            f"expected an IDX file of bytes in {where}, got one that begins {start.hex(' ')}"
        )
    header = 4 + 4 * start[3]
    if len(data) < header:
        raise DamagedError(f"expected a header of {header} bytes in {where}, got {len(data)} bytes")
    sizes = [int(size) for size in np.frombuffer(data[4:header], ">u4")]
    expected = header + math.prod(sizes)
    if len(data) != expected:
        raise DamagedError(
            f"expected {expected:,} bytes in {where} according to its header, got {len(data):,}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=header).reshape(sizes)


def read_cifar(data: bytes, *, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images, ``[count, 3, 32, 32]``, and labels from the bytes of an uncompressed file.

    CIFAR-10 has one label per record. CIFAR-100 has a coarse and a fine label; the coarse label is
    skipped.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html
    """
    labels = 1 if classes == 10 else 2
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, labels + 3 * 32 * 32)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64)


def decode_picture(
    data: bytes, where: str, sides: range, formats: tuple[str, ...] = ("PNG", "JPEG")
) -> NDArray[np.uint8]:
    """Decode a square picture to ``[1 or 3, size, size]``; needs Pillow.

    The picture is decoded only if its header gives one of ``formats`` and a side in ``sides``.
    """
    # An optional dependency, required only for reading pictures.
    from PIL import Image  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            # A header that claims a huge picture is rejected below.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=formats) as picture:
                if picture.width != picture.height or picture.width not in sides:
                    wanted = " to ".join(map(str, sorted({sides[0], sides[-1]})))
                    raise DamagedError(
                        f"expected a square picture of {wanted} pixels a side in {where}, got "
                        f"{picture.width} x {picture.height}"
                    )
                is_grey = picture.mode in ("1", "L")
                pixels = np.asarray(picture.convert("L" if is_grey else "RGB"))
                return pixels[None] if is_grey else pixels.transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DamagedError(
            f"expected a complete {' or '.join(formats)} in {where}: {error}"
        ) from None
