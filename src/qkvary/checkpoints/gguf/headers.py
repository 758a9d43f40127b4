"""Reads GGUF files as stored: metadata, and the shape, type and bytes of each tensor.

Needs the standard library only. A file is untrusted: every count, length and offset is checked
against the bytes that exist before anything is read.

Source: ggml-org/ggml, docs/gguf.md, version 3.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import (
    MAX_ENTRIES,
    MAX_SIDE_FILE_BYTES,
    check_regular_file,
    read_start,
)

MAGIC = b"GGUF"
VERSION = 3
READ_VERSIONS = (2, 3)
ALIGNMENT = 32

GELU = "qkvary.gelu"
"""The metadata key that marks a network with exact GELU (``erf``); llama.cpp ignores it."""

CHAT_TEMPLATE = "tokenizer.chat_template"
"""The metadata key of the template with which llama.cpp turns messages into a prompt."""

TensorType = Literal["f32", "f16", "bf16", "q8_0"]
Metadata = Mapping[str, Any]
"""The metadata of a file by key: integers, floats, booleans, strings, and lists of one of these or
of bytes."""

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
LONGEST_NAME = 1024
MOST_DIMENSIONS = 4
STRING, ARRAY = 8, 9
SCALARS: Mapping[int, str] = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}
"""The format characters of ``struct``, by the number of the value type in a file."""


class Blocks(NamedTuple):
    """A tensor type's number, and the numbers of values and bytes in each of its blocks."""

    number: int
    size: int
    """Values per block; a row consists of whole blocks."""
    block_bytes: int


BLOCKS: Mapping[str, Blocks] = {
    "f32": Blocks(0, 1, 4),
    "f16": Blocks(1, 1, 2),
    "q4_0": Blocks(2, 32, 18),
    "q4_1": Blocks(3, 32, 20),
    "q5_0": Blocks(6, 32, 22),
    "q5_1": Blocks(7, 32, 24),
    "q8_0": Blocks(8, 32, 34),
    "q2_k": Blocks(10, 256, 84),
    "q3_k": Blocks(11, 256, 110),
    "q4_k": Blocks(12, 256, 144),
    "q5_k": Blocks(13, 256, 176),
    "q6_k": Blocks(14, 256, 210),
    "iq2_xxs": Blocks(16, 256, 66),
    "iq2_xs": Blocks(17, 256, 74),
    "iq3_xxs": Blocks(18, 256, 98),
    "iq1_s": Blocks(19, 256, 50),
    "iq4_nl": Blocks(20, 32, 18),
    "iq3_s": Blocks(21, 256, 110),
    "iq2_s": Blocks(22, 256, 82),
    "iq4_xs": Blocks(23, 256, 136),
    "iq1_m": Blocks(29, 256, 56),
    "bf16": Blocks(30, 1, 2),
    "tq1_0": Blocks(34, 256, 54),
    "tq2_0": Blocks(35, 256, 66),
    "mxfp4": Blocks(39, 32, 17),
    "nvfp4": Blocks(40, 64, 36),
}
"""The types that can be read; those of ``TensorType`` can be written too."""
_BY_NUMBER = {one.number: name for name, one in BLOCKS.items()}


class Stored(NamedTuple):
    """A tensor of a file."""

    shape: tuple[int, ...]
    """The shape in numpy's order, rows first."""
    type: str
    data: memoryview


class GgufFile(NamedTuple):
    """A GGUF file, or all parts of a split GGUF file, with the tensors as stored."""

    metadata: Metadata
    tensors: Mapping[str, Stored]

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors by name."""
        return {name: one.shape for name, one in self.tensors.items()}


class _Reader:
    def __init__(self, data: "bytes | mmap.mmap", where: str) -> None:
        self.data, self.where, self.place = data, where, 0
        self.entries_left = MAX_ENTRIES

    def take(self, size: int) -> bytes:
        left = len(self.data) - self.place
        if size > left:
            raise DamagedError(
                f"{self.where} ends inside its header: expected {size:,} bytes, got {left:,}"
            )
        self.place += size
        return self.data[self.place - size : self.place]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def text(self) -> str | bytes:
        """Return the next string; text that is not UTF-8 stays as bytes."""
        # Not number("Q"), which is slow: a vocabulary has hundreds of thousands of strings.
        first, self.place = self.place, self.place + 8
        data = self.take(int.from_bytes(self.data[first : self.place], "little"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data

    def count(self, code: str, what: str, most: int = MAX_ENTRIES) -> int:
        """Return the next number as a count of entries; the sum of all counts is limited."""
        found = self.number(code)
        most = min(most, self.entries_left)
        if found > most:
            raise DamagedError(f"{self.where} has {found:,} {what}, expected at most {most:,}")
        self.entries_left -= found
        return found

    def name(self) -> str:
        """Return the next string as a key or name; long or unprintable names are refused."""
        text = self.take(self.count("Q", "letters in a name", LONGEST_NAME)).decode(
            "utf-8", "replace"
        )
        if not text.isprintable() or "\ufffd" in text:
            raise DamagedError(f"{self.where} has a name with characters that are not printable")
        return text

    def value(self) -> Any:
        """Read a type and then a value of this type, and return the value."""
        kind = self.number("I")
        if kind == STRING:
            return self.text()
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind != ARRAY:
            raise DamagedError(f"{self.where} has a value of the unknown type {kind}")
        inner, length = self.number("I"), self.count("Q", "values in its lists")
        if inner == STRING:
            return [self.text() for _ in range(length)]
        if inner not in SCALARS:
            raise DamagedError(f"{self.where} has a list of the unknown type {inner}")
        width = struct.calcsize(f"<{SCALARS[inner]}")
        return list(struct.unpack(f"<{length}{SCALARS[inner]}", self.take(width * length)))


def list_files(path: Path) -> list[Path]:
    """Return the GGUF file or files at a path; a split file is listed by its first part.

    The list is empty for a folder that also has safetensors and their configuration.
    """
    if path.is_file():
        is_one = path.suffix == ".gguf" or read_start(path, len(MAGIC)) == MAGIC
        return [list_parts(path)[0]] if is_one else []
    if _has_network(path):
        return []
    found = sorted(path.glob("*.gguf")) if path.is_dir() else []
    return list(dict.fromkeys(list_parts(one)[0] for one in found))


def _has_network(path: Path) -> bool:
    """Return whether a folder has a network's configuration and its safetensors."""
    config, names = path / "config.json", ("model.safetensors", "model.safetensors.index.json")
    if not (config.is_file() and any((path / name).is_file() for name in names)):
        return False
    content = read_start(config, MAX_SIDE_FILE_BYTES)
    return b'"model_type"' in content or b'"chars"' in content


def list_parts(path: Path) -> list[Path]:
    """Return all parts of a split file (``-00001-of-00003.gguf``), given any part."""
    split = _PART.fullmatch(path.name)
    if split is None or not 1 <= int(split["number"]) <= (count := int(split["count"])):
        return [path]
    names = (f"{split['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))
    return [path.with_name(name) for name in names]


def read_file(path: Path) -> GgufFile:
    """Map all parts of a file into memory and return them; the first part has the metadata."""
    paths = list_parts(path)
    for part in paths if len(paths) > 1 else ():
        if not part.is_file():
            raise DamagedError(f"{paths[0]} has {len(paths)} parts, but {part.name} is missing")
    parts = [parse_file(_map(one), str(one)) for one in paths]
    tensors = {name: one for part in parts for name, one in part.tensors.items()}
    if len(tensors) < sum(len(part.tensors) for part in parts):
        raise DamagedError(f"the parts of {path} have two tensors of the same name")
    return GgufFile(parts[0].metadata, tensors)


def _map(path: Path) -> "bytes | mmap.mmap":
    if not check_regular_file(path):
        raise DamagedError(f"{path} is empty")
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None


def parse_file(data: "bytes | mmap.mmap", where: str) -> GgufFile:
    """Return the contents of a GGUF file that is not split."""
    reader = _Reader(data, where)
    if reader.take(4) != MAGIC:
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
    if sum(entry.size for entry in entries) > len(data):
        raise DamagedError(f"{where} has {len(data):,} bytes, fewer than its tensors need")
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise DamagedError(f"{where} has the alignment {alignment!r}, expected a power of two")
    start = reader.place + -reader.place % alignment
    found, view = dict[str, Stored](), memoryview(data)
    for entry in entries:
        first = start + entry.place
        if first + entry.size > len(data):
            raise DamagedError(f"{where} ends before {entry.name}, at {len(data):,} bytes")
        found[entry.name] = Stored(entry.shape, entry.type, view[first : first + entry.size])
    if len(found) < tensors:
        raise DamagedError(f"{where} has two tensors of the same name")
    return GgufFile(metadata, found)


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: str
    place: int
    """The offset of the first byte from the start of the first tensor."""
    size: int


def _read_entry(reader: _Reader) -> _Entry:
    name = reader.name()
    sizes = [reader.number("Q") for _ in range(reader.count("I", "dimensions", MOST_DIMENSIONS))]
    number, place = reader.number("I"), reader.number("Q")
    found = _BY_NUMBER.get(number)
    if found is None:
        raise UsageError(
            f"{reader.where} stores {name} as type {number}; choices: {', '.join(BLOCKS)}"
        )
    stored = BLOCKS[found]
    if not sizes or min(sizes) < 1 or sizes[0] % stored.size:
        raise DamagedError(
            f"{reader.where} has the tensor {name}, which has sizes {sizes} that the type {found} "
            "cannot store"
        )
    size = math.prod(sizes) // stored.size * stored.block_bytes
    return _Entry(name, tuple(reversed(sizes)), found, place, size)
