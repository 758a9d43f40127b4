"""Safetensors files written tensor by tensor, and read row by row and verified.

Unlike with the library, no file is held in memory as a whole, and no tensor is used before its file
was checked against the manifest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from qkvary.storage.checkpoint_folders import FileContents
from qkvary.storage.errors import DamagedError
from qkvary.storage.manifest import CheckedFile
from qkvary.storage.untrusted_files import parse_json

_DTYPES = {
    "F64": torch.float64,
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH_BYTES = 8
_LARGEST_HEADER = 10**8


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """The header entry of a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


RowSelector = Callable[[TensorEntry], range]
"""Returns the rows of a tensor to read; not called for scalars."""


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def entry_of(name: str, tensor: Tensor) -> TensorEntry:
    """Return the header entry of a tensor."""
    return TensorEntry(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))


def contents_of(tensors: Mapping[str, Tensor]) -> FileContents:
    """Return the contents of a file with ``tensors``, generated one by one."""
    # Wide dtypes first, for alignment; then by name.
    entries = sorted(
        (entry_of(name, tensor) for name, tensor in tensors.items()),
        key=lambda entry: (-entry.dtype.itemsize, entry.name),
    )
    header = _header(entries)

    def blocks() -> Iterator[bytes | memoryview]:
        yield header
        for entry in entries:
            if entry.size:
                yield tensor_bytes(tensors[entry.name].detach().cpu().contiguous())

    size = len(header) + sum(entry.size for entry in entries)
    return FileContents(size=size, blocks=blocks())


def _header(entries: list[TensorEntry]) -> bytes:
    fields: dict[str, dict[str, object]] = {}
    start = 0
    for entry in entries:
        end = start + entry.size
        fields[entry.name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (start, end),
        }
        start = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_tensors(file: CheckedFile, chosen: RowSelector) -> dict[str, Tensor]:
    """Return the selected rows of every tensor of a file; other rows use no memory.

    Raises:
        DamagedError: if the file does not match the manifest, or is invalid.
    """
    tensors: dict[str, Tensor] = {}
    for entry in _read_header(file):
        count = entry.shape[0] if entry.shape else 1
        rows = chosen(entry) if entry.shape else range(1)
        if not 0 <= rows.start <= rows.stop <= count:
            raise DamagedError(f"{file.path} holds {count} rows of {entry.name}, not {rows.stop}")
        row_bytes = entry.size // max(1, count)
        tensor = torch.empty((len(rows), *entry.shape[1:])[: len(entry.shape)], dtype=entry.dtype)
        file.skip(rows.start * row_bytes)
        if tensor.numel():
            file.fill(tensor_bytes(tensor))
        file.skip(entry.size - rows.stop * row_bytes)
        tensors[entry.name] = tensor
    file.finish()
    return tensors


def _read_header(file: CheckedFile) -> list[TensorEntry]:
    size = int.from_bytes(file.take(_LENGTH_BYTES), "little")
    if size > _LARGEST_HEADER:
        raise DamagedError(f"{file.path} holds no tensors: its header would have {size:,} bytes")
    data = file.take(size)
    try:
        entries = _parse_header(data, file.left)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{file.path} holds no tensors: its header is invalid") from None
    return entries


def _parse_header(data: bytes, left: int) -> list[TensorEntry]:
    fields = cast("dict[str, Any]", parse_json(data))
    fields.pop("__metadata__", None)
    entries: list[TensorEntry] = []
    start = 0
    for name, field in sorted(fields.items(), key=lambda item: item[1]["data_offsets"]):
        shape = tuple(field["shape"])
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(name)
        entry = TensorEntry(name=name, dtype=_DTYPES[field["dtype"]], shape=shape)
        if field["data_offsets"] != [start, start + entry.size]:
            raise ValueError(name)
        entries.append(entry)
        start += entry.size
    if start != left:
        raise ValueError(start)
    return entries
