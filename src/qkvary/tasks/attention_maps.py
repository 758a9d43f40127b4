"""The attention maps of a finished run, written and read as safetensors without torch."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import parse_json
from qkvary.tasks.examples import AttentionExample

_NO_TARGET = -1


def to_bytes(example: AttentionExample) -> bytes:
    """Return the bytes of ``attention.safetensors``."""
    parts = _parts(example, "")
    for number, other in enumerate(example.others):
        parts |= _parts(other, f"{number}.")
    if example.kind:
        kinds = json.dumps([example.kind, *(other.kind for other in example.others)]).encode()
        parts["kinds"] = np.frombuffer(kinds, dtype=np.uint8)
    return save(parts)


def _parts(example: AttentionExample, prefix: str) -> dict[str, NDArray[Any]]:
    targets = [_NO_TARGET if target is None else target for target in example.targets]
    tokens = json.dumps(example.tokens).encode()
    return {
        f"{prefix}maps": np.ascontiguousarray(example.maps, dtype=np.float32),
        f"{prefix}targets": np.array(targets, dtype=np.int64),
        f"{prefix}tokens": np.frombuffer(tokens, dtype=np.uint8),
    }


def from_bytes(data: bytes) -> AttentionExample:
    """Return the maps that ``to_bytes`` wrote.

    Raises:
        DamagedError: if the bytes are not attention maps.
    """
    try:
        found = load(data)
        first, *kinds = parse_json(found["kinds"].tobytes()) if "kinds" in found else [""]
        others = [_read(found, f"{number}.", kind) for number, kind in enumerate(kinds)]
        return replace(_read(found, "", first), others=tuple(others))
    except (SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"attention.safetensors holds no attention maps: {error}") from None


def _read(found: Mapping[str, NDArray[Any]], prefix: str, kind: str) -> AttentionExample:
    targets = found[f"{prefix}targets"].tolist()
    return AttentionExample(
        maps=found[f"{prefix}maps"],
        tokens=tuple(parse_json(found[f"{prefix}tokens"].tobytes())),
        targets=tuple(None if number == _NO_TARGET else number for number in targets),
        kind=kind,
    )
