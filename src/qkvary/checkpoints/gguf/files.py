"""GGUF files as bytes: metadata and tensors in, metadata and tensors out.

Does not know what they mean; ``headers`` reads and checks all but the tensors.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.checkpoints.gguf.headers import (
    ALIGNMENT,
    ARRAY,
    BLOCKS,
    MAGIC,
    Q8_BLOCK,
    SCALARS,
    STRING,
    VERSION,
    Entry,
    Metadata,
    TensorType,
    parse_header,
)

Array = NDArray[Any]

_NUMBERS: Mapping[str, int] = {code: number for number, code in SCALARS.items()}


class Tensor(NamedTuple):
    """A tensor as it is stored."""

    values: Array
    """Its numbers in float32, in the order of numpy: rows first."""
    type: TensorType
    """The type of the file."""


class GgufFile(NamedTuple):
    """The contents of a file."""

    metadata: Metadata
    tensors: Mapping[str, Tensor]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors by name."""
        return {name: one.values.shape for name, one in self.tensors.items()}

    def numbers_of(self, name: str) -> list[float]:
        """Return the numbers of a tensor."""
        return self.tensors[name].values.reshape(-1).tolist()


class _Stored(NamedTuple):
    pack: Callable[[Array], bytes]
    unpack: Callable[[bytes | memoryview], Array]


def _pack_bf16(values: Array) -> bytes:
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    # Rounds to the nearest, ties to even.
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype("<u2").tobytes()


def _unpack_bf16(data: bytes | memoryview) -> Array:
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")


def _pack_q8(values: Array) -> bytes:
    blocks = values.astype("<f4").reshape(-1, Q8_BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = blocks * inverse
    # Halves away from zero, as llama.cpp rounds.
    codes = (np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))).astype(np.int8)
    return np.hstack([scales.astype("<f2").view(np.uint8), codes.view(np.uint8)]).tobytes()


def _unpack_q8(data: bytes | memoryview) -> Array:
    rows = np.frombuffer(data, np.uint8).reshape(-1, 2 + Q8_BLOCK)
    scales = rows[:, :2].copy().view("<f2").astype(np.float32)
    return rows[:, 2:].view(np.int8).astype(np.float32) * scales


def _pack_as(dtype: str) -> Callable[[Array], bytes]:
    return lambda values: values.astype(dtype).tobytes()


def _unpack_as(dtype: str) -> Callable[[bytes | memoryview], Array]:
    return lambda data: np.frombuffer(data, dtype).astype(np.float32)


TYPES: Mapping[TensorType, _Stored] = {
    "f32": _Stored(_pack_as("<f4"), _unpack_as("<f4")),
    "f16": _Stored(_pack_as("<f2"), _unpack_as("<f2")),
    "q8_0": _Stored(_pack_q8, _unpack_q8),
    "bf16": _Stored(_pack_bf16, _unpack_bf16),
}


def pack_file(metadata: Metadata, tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of a file.

    Args:
        metadata: Values by key, in order. Whole numbers are stored in 32 bits.
        tensors: Tensors by name, in order; the rows of each are whole blocks of its type.
    """
    head = [struct.pack("<4sIQQ", MAGIC, VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        number = _kind_of(value)
        head += _pack_text(key), struct.pack("<I", number), _pack_plain(value, number)
    data: list[bytes] = []
    place = 0
    for name, (values, kind) in tensors.items():
        packed = TYPES[kind].pack(values)
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
    # Readers expect arrays of signed numbers.
    inner = _NUMBERS["i"] if inner == _NUMBERS["I"] else inner
    parts = (_pack_plain(one, inner) for one in value)
    return struct.pack("<IQ", inner, len(value)) + b"".join(parts)


def parse_file(data: bytes, where: str) -> GgufFile:
    """Return the metadata and the tensors of a file.

    Args:
        data: Its bytes.
        where: Its name in messages.

    Raises:
        DamagedError: if the header does not fit the bytes.
        UsageError: for a version or a type of tensors that is not supported.
    """
    header = parse_header(data, where)
    tensors = {one.name: _read_tensor(one, data, header.start) for one in header.entries}
    return GgufFile(header.metadata, tensors)


def _read_tensor(entry: Entry, data: bytes, start: int) -> Tensor:
    first = start + entry.place
    values = TYPES[entry.type].unpack(memoryview(data)[first : first + entry.size])
    return Tensor(values.reshape(entry.shape), entry.type)
