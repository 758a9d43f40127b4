"""The attention maps of a finished run, written and read as safetensors without torch."""

import json
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from qkvary.storage.errors import DamagedError

_NO_TARGET = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMaps:
    """The attention weights of one network on one example."""

    maps: NDArray[np.float32]
    """``[layers, heads, rows, columns]``."""
    tokens: tuple[str, ...]
    """The example's tokens, one per column."""
    targets: tuple[int | None, ...]
    """For each row the column that holds its answer; None if no single column does."""


def to_bytes(example: AttentionMaps) -> bytes:
    """Return the bytes of ``attention.safetensors``."""
    targets = [_NO_TARGET if target is None else target for target in example.targets]
    tokens = json.dumps(example.tokens).encode()
    return save(
        {
            "maps": np.ascontiguousarray(example.maps, dtype=np.float32),
            "targets": np.array(targets, dtype=np.int64),
            "tokens": np.frombuffer(tokens, dtype=np.uint8),
        }
    )


def from_bytes(data: bytes) -> AttentionMaps:
    """Return the maps that ``to_bytes`` wrote.

    Raises:
        DamagedError: if the bytes are not attention maps.
    """
    try:
        found = cast("dict[str, dict[str, Any]]", dict(deserialize(data)))
        shape = tuple(cast("list[int]", found["maps"]["shape"]))
        maps = np.frombuffer(found["maps"]["data"], dtype=np.float32).reshape(shape)
        numbers = np.frombuffer(found["targets"]["data"], dtype=np.int64).tolist()
        tokens = cast("list[str]", json.loads(bytes(found["tokens"]["data"])))
    except (SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"attention.safetensors holds no attention maps: {error}") from None
    targets = tuple(None if number == _NO_TARGET else number for number in numbers)
    return AttentionMaps(maps=maps, tokens=tuple(tokens), targets=targets)
