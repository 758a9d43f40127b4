"""Packs GGUF files, and unpacks the values of stored tensors.

The package ``gguf`` of llama.cpp packs and unpacks the values; the module ``headers`` reads and
checks everything else.
"""

import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.checkpoints.gguf.headers import (
    ALIGNMENT,
    ARRAY,
    BLOCKS,
    MAGIC,
    SCALARS,
    STRING,
    VERSION,
    Metadata,
    Stored,
)
from qkvary.storage.packages import require

Array = NDArray[Any]

_NUMBERS: Mapping[str, int] = {code: number for number, code in SCALARS.items()}


class Tensor(NamedTuple):
    """A tensor to store."""

    values: Array
    """The values in float32; the shape is in numpy's order, rows first."""
    type: str


def _quants(kind: str) -> tuple[Any, Any]:
    """Return the module of ``gguf`` that packs values, and its constant for a tensor type."""
    require("gguf")
    library: Any = import_module("gguf")
    return library.quants, library.GGMLQuantizationType[kind.upper()]


def pack_file(metadata: Metadata, tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a file; integers in its metadata are stored in 32 bits."""
    head = [struct.pack("<4sIQQ", MAGIC, VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        number = _kind_of(value)
        head += _pack_text(key), struct.pack("<I", number), _pack_plain(value, number)
    data: list[bytes] = []
    place = 0
    for name, (values, kind) in tensors.items():
        quants, number = _quants(kind)
        packed = quants.quantize(values.astype("<f4"), number).tobytes()
        sizes = values.shape[::-1]
        head.append(_pack_text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        head.append(struct.pack("<IQ", BLOCKS[kind].number, place))
        data += packed, _padding(len(packed))
        place += len(packed) + len(data[-1])
    start = b"".join(head)
    return b"".join([start, _padding(len(start)), *data])


def _padding(size: int) -> bytes:
    return b"\0" * (-size % ALIGNMENT)


def _pack_text(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _kind_of(value: Any) -> int:
    if isinstance(value, str | bytes):
        return STRING
    if isinstance(value, Sequence):
        return ARRAY
    codes = {bool: "?", float: "f", int: "i" if value < 0 else "I"}
    return _NUMBERS[codes[type(value)]]


def _pack_plain(value: Any, kind: int) -> bytes:
    if kind == STRING:
        return _pack_text(value)
    if kind != ARRAY:
        return struct.pack(f"<{SCALARS[kind]}", value)
    inner = _kind_of(value[0])
    # Readers expect arrays of signed integers.
    inner = _NUMBERS["i"] if inner == _NUMBERS["I"] else inner
    parts = (_pack_plain(one, inner) for one in value)
    return struct.pack("<IQ", inner, len(value)) + b"".join(parts)


def unpack_tensor(stored: Stored) -> Array:
    """Return the values of a stored tensor in float32."""
    quants, number = _quants(stored.type)
    rows = np.frombuffer(stored.data, np.uint8).reshape(*stored.shape[:-1], -1)
    return quants.dequantize(rows, number).reshape(stored.shape)
