"""A small PNG writer."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def pixel_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of pixels, ``[channels, rows, columns]`` with one or three channels."""
    channels, rows, columns = pixels.shape
    lines = pixels.transpose(1, 2, 0).reshape(rows, columns * channels)
    # 8 bits per channel; in PNG files, color type 0 is grey and 2 is red, green, blue.
    header = struct.pack(">IIBBBBB", columns, rows, 8, 0 if channels == 1 else 2, 0, 0, 0)
    body = b"".join(b"\0" + line.tobytes() for line in lines)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(body, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
