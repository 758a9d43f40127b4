"""GGUF files as bytes: metadata and tensors in, metadata and tensors out.

Does not know what they mean. A file is untrusted: every count, length and offset is checked against
the bytes that exist before anything is read.

Source: ggml-org/ggml, docs/gguf.md, version 3.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_ENTRIES

MAGIC = b"GGUF"
VERSION = 3
READ_VERSIONS = (2, 3)
ALIGNMENT = 32
Q8_BLOCK = 32
"""Numbers that share one scale in q8_0."""

GELU = "qkvary.gelu"
"""The key of a network with the exact form of GELU, ``erf``; llama.cpp ignores it."""

CHAT_TEMPLATE = "tokenizer.chat_template"
"""The key of the text with which llama.cpp writes messages as a prompt."""

TensorType = Literal["f32", "f16", "bf16", "q8_0"]
Metadata = Mapping[str, Any]
"""Values by key: whole numbers, float, bool, str, and lists of one of them or of bytes."""
Array = NDArray[Any]

LONGEST_NAME = 1024
MOST_DIMENSIONS = 4
LARGEST_ALIGNMENT = 2**16
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""The codes of ``struct`` by the numbers of value types."""
_NUMBERS: Mapping[str, int] = {code: number for number, code in _SCALARS.items()}


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


class _Stored(NamedTuple):
    number: int
    """Its number in files."""
    block: int
    """Numbers in a block; rows consist of whole blocks."""
    block_bytes: int
    """Bytes of a block."""
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
    "f32": _Stored(0, 1, 4, _pack_as("<f4"), _unpack_as("<f4")),
    "f16": _Stored(1, 1, 2, _pack_as("<f2"), _unpack_as("<f2")),
    "q8_0": _Stored(8, Q8_BLOCK, 2 + Q8_BLOCK, _pack_q8, _unpack_q8),
    "bf16": _Stored(30, 1, 2, _pack_bf16, _unpack_bf16),
}
_BY_NUMBER: Mapping[int, TensorType] = {one.number: name for name, one in TYPES.items()}


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
        head.append(struct.pack("<IQ", TYPES[kind].number, place))
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
        return _STRING
    if isinstance(value, Sequence):
        return _ARRAY
    codes = {bool: "?", float: "f", int: "i" if value < 0 else "I"}
    return _NUMBERS[codes[type(value)]]


def _pack_plain(value: Any, kind: int) -> bytes:
    if kind == _STRING:
        return _pack_text(value)
    if kind != _ARRAY:
        return struct.pack(f"<{_SCALARS[kind]}", value)
    inner = _kind_of(value[0])
    # Readers expect arrays of signed numbers.
    inner = _NUMBERS["i"] if inner == _NUMBERS["I"] else inner
    parts = (_pack_plain(one, inner) for one in value)
    return struct.pack("<IQ", inner, len(value)) + b"".join(parts)


class _Reader:
    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.place = memoryview(data), where, 0
        self.entries_left = MAX_ENTRIES

    def take(self, size: int) -> memoryview:
        """Return the next bytes."""
        left = len(self.data) - self.place
        if size > left:
            raise DamagedError(f"{self.where} ends inside its header: {size:,} bytes of {left:,}")
        self.place += size
        return self.data[self.place - size : self.place]

    def number(self, code: str) -> Any:
        """Return the next number."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, code: str, what: str, most: int = MAX_ENTRIES) -> int:
        """Return the next number where it counts something; all together have a limit."""
        found = self.number(code)
        most = min(most, self.entries_left)
        if found > most:
            raise DamagedError(f"{self.where} has {found:,} {what}, expected at most {most:,}")
        self.entries_left -= found
        return found

    def raw_text(self) -> bytes:
        """Return the next text as bytes."""
        return bytes(self.take(self.number("Q")))

    def name(self) -> str:
        """Return the next text, which is a key or a name."""
        text = bytes(self.take(self.count("Q", "letters in a name", LONGEST_NAME))).decode(
            "utf-8", "replace"
        )
        if not text.isprintable() or "\ufffd" in text:
            raise DamagedError(f"{self.where} has a name of other characters than printable ones")
        return text

    def value(self) -> Any:
        """Return the next value with its type; a text that is not UTF-8 stays bytes."""
        return self._plain(self.number("I"))

    def _plain(self, kind: int) -> Any:
        if kind == _STRING:
            return _text_or_bytes(self.raw_text())
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise DamagedError(f"{self.where} has a value of the unknown type {kind}")
        inner, length = self.number("I"), self.count("Q", "values in its lists")
        if inner == _STRING:
            return [_text_or_bytes(self.raw_text()) for _ in range(length)]
        if inner not in _SCALARS:
            raise DamagedError(f"{self.where} has a list of the unknown type {inner}")
        width = struct.calcsize(f"<{_SCALARS[inner]}")
        return list(struct.unpack(f"<{length}{_SCALARS[inner]}", self.take(width * length)))


def _text_or_bytes(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: TensorType
    place: int
    size: int


def parse_file(data: bytes, where: str) -> GgufFile:
    """Return the metadata and the tensors of a file.

    Args:
        data: Its bytes.
        where: Its name in messages.

    Raises:
        DamagedError: if the header does not fit the bytes.
        UsageError: for a version or a type of tensors that is not supported.
    """
    reader = _Reader(data, where)
    if bytes(reader.take(4)) != MAGIC:
        raise DamagedError(f"{where} does not begin with {MAGIC.decode()}")
    version = reader.number("I")
    if version not in READ_VERSIONS:
        raise DamagedError(f"{where} has version {version}, expected 2 or 3")
    tensors, values = reader.count("Q", "tensors"), reader.count("Q", "values")
    metadata = dict[str, Any]()
    for _ in range(values):
        key = reader.name()
        if key in metadata:
            raise DamagedError(f"{where} has {key} twice")
        metadata[key] = reader.value()
    entries = [_read_entry(reader) for _ in range(tensors)]
    if len({entry.name for entry in entries}) != tensors:
        raise DamagedError(f"{where} has two tensors of one name")
    if sum(entry.size for entry in entries) > len(data):
        raise DamagedError(f"{where} has {len(data):,} bytes, fewer than its tensors")
    alignment = metadata.get("general.alignment", ALIGNMENT)
    powers = [1 << power for power in range(3, LARGEST_ALIGNMENT.bit_length())]
    if not isinstance(alignment, int) or alignment not in powers:
        raise DamagedError(f"{where} has the alignment {alignment!r}, expected a power of two")
    start = reader.place + -reader.place % alignment
    return GgufFile(metadata, {one.name: _read_tensor(one, data, start, where) for one in entries})


def _read_entry(reader: _Reader) -> _Entry:
    name = reader.name()
    sizes = [reader.number("Q") for _ in range(reader.count("I", "dimensions", MOST_DIMENSIONS))]
    number, place = reader.number("I"), reader.number("Q")
    found = _BY_NUMBER.get(number)
    if found is None:
        raise UsageError(f"{reader.where} has {name} as type {number}; choices: {', '.join(TYPES)}")
    stored = TYPES[found]
    if not sizes or min(sizes) < 1 or sizes[0] % stored.block:
        raise DamagedError(f"{reader.where} has {name} of {sizes}, which {found} cannot store")
    size = math.prod(sizes) // stored.block * stored.block_bytes
    return _Entry(name, tuple(reversed(sizes)), found, place, size)


def _read_tensor(entry: _Entry, data: bytes, start: int, where: str) -> Tensor:
    first = start + entry.place
    if first + entry.size > len(data):
        raise DamagedError(f"{where} ends before {entry.name}, at {len(data):,} bytes")
    values = TYPES[entry.type].unpack(memoryview(data)[first : first + entry.size])
    return Tensor(values.reshape(entry.shape), entry.type)
