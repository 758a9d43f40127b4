"""A small PNG writer: it takes palette indices or pixels and returns the bytes of the file."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_GREY, _COLOUR, _INDEXED = 0, 2, 3
"""The codes of colour types in PNG files."""


def indexed_png(indices: NDArray[np.uint8], palette: bytes) -> bytes:
    """Return a PNG of indices from 0 to 15 into a palette.

    ``palette`` holds the red, green and blue byte of each colour.
    """
    even = np.pad(indices, ((0, 0), (0, indices.shape[1] % 2)))
    packed = (even[:, ::2] << 4 | even[:, 1::2]).astype(np.uint8)
    return _encode(packed, indices.shape[1], 4, _INDEXED, palette)


def pixel_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of pixels, ``[channels, rows, columns]`` with one or three channels."""
    channels, rows, columns = pixels.shape
    lines = pixels.transpose(1, 2, 0).reshape(rows, columns * channels)
    return _encode(lines, columns, 8, _GREY if channels == 1 else _COLOUR)


def _encode(
    lines: NDArray[np.uint8], width: int, depth: int, kind: int, palette: bytes = b""
) -> bytes:
    header = struct.pack(">IIBBBBB", width, len(lines), depth, kind, 0, 0, 0)
    body = b"".join(b"\0" + line.tobytes() for line in lines)
    chunks = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(body, 9))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in (*chunks, (b"IEND", b""))
        if data or name != b"PLTE"
    )
