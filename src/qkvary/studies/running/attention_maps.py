"""The attention maps of a finished run, written and read as safetensors without torch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

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
    kind: str = ""
    """The layers, where a network has several kinds."""
    others: "tuple[AttentionMaps, ...]" = ()
    """The maps of the other kinds of layers."""


def to_bytes(example: AttentionMaps) -> bytes:
    """Return the bytes of ``attention.safetensors``."""
    parts = _parts(example, "")
    for number, other in enumerate(example.others):
        parts |= _parts(other, f"{number}.")
    if example.kind:
        kinds = json.dumps([example.kind, *(other.kind for other in example.others)]).encode()
        parts["kinds"] = np.frombuffer(kinds, dtype=np.uint8)
    return save(parts)


def _parts(example: AttentionMaps, prefix: str) -> dict[str, NDArray[Any]]:
    targets = [_NO_TARGET if target is None else target for target in example.targets]
    tokens = json.dumps(example.tokens).encode()
    return {
        f"{prefix}maps": np.ascontiguousarray(example.maps, dtype=np.float32),
        f"{prefix}targets": np.array(targets, dtype=np.int64),
        f"{prefix}tokens": np.frombuffer(tokens, dtype=np.uint8),
    }


def from_bytes(data: bytes) -> AttentionMaps:
    """Return the maps that ``to_bytes`` wrote.

    Raises:
        DamagedError: if the bytes are not attention maps.
    """
    try:
        found = load(data)
        first, *kinds = json.loads(found["kinds"].tobytes()) if "kinds" in found else [""]
        others = [_read(found, f"{number}.", kind) for number, kind in enumerate(kinds)]
        return replace(_read(found, "", first), others=tuple(others))
    except (SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"attention.safetensors holds no attention maps: {error}") from None


def _read(found: Mapping[str, NDArray[Any]], prefix: str, kind: str) -> AttentionMaps:
    targets = found[f"{prefix}targets"].tolist()
    return AttentionMaps(
        maps=found[f"{prefix}maps"],
        tokens=tuple(json.loads(found[f"{prefix}tokens"].tobytes())),
        targets=tuple(None if number == _NO_TARGET else number for number in targets),
        kind=kind,
    )
