"""Writes safetensors files tensor by tensor, and reads them row by row.

Unlike the safetensors library, this module never holds a whole file in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qkvary.storage.errors import DamagedError
from qkvary.storage.manifest import FileContents
from qkvary.storage.untrusted_files import short_reason

_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LENGTH_BYTES = 8

RowSelector = Callable[[str, int], range]
"""Returns the rows to read, given a tensor's name and number of rows; not called for scalars."""


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def contents_of(tensors: Mapping[str, Tensor]) -> FileContents:
    """Return the contents of a file with ``tensors``, generated one by one."""
    # Wide dtypes first for alignment, then by name.
    entries = sorted(tensors.items(), key=lambda entry: (-entry[1].dtype.itemsize, entry[0]))
    fields, size = dict[str, object](), 0
    for name, tensor in entries:
        place, size = size, size + tensor.nbytes
        fields[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": (place, size),
        }
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    header = len(text).to_bytes(_LENGTH_BYTES, "little") + text

    def blocks() -> Iterator[bytes | memoryview]:
        yield header
        for _, tensor in entries:
            if tensor.nbytes:
                yield tensor_bytes(tensor.detach().cpu().contiguous())

    return FileContents(size=len(header) + size, blocks=blocks())


def read_tensors(path: Path, chosen: RowSelector) -> dict[str, Tensor]:
    """Return the selected rows of every tensor of a file; other rows use no memory."""
    tensors = dict[str, Tensor]()
    try:
        with safe_open(path, framework="pt") as file:
            # An open file has keys, but cannot be iterated over.
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                shape: list[int] = part.get_shape()
                rows = chosen(name, shape[0]) if shape else range(0)
                if shape and not 0 <= rows.start <= rows.stop <= shape[0]:
                    raise DamagedError(
                        f"{path} holds {shape[0]} rows of {name}, expected {rows.stop} or more"
                    )
                found = part[rows.start : rows.stop] if shape else file.get_tensor(name)
                # The library's tensor is memory-mapped, and the file may be removed.
                tensors[name] = found.clone()
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"{path} holds no tensors: {short_reason(error)}") from None
    return tensors
