"""Writes and reads the examples of a finished run as safetensors, without torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as tensors

from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import parse_json
from qkvary.tasks.examples import AttentionExample, Sample

Arrays = dict[str, NDArray[Any]]
_NO_TARGET = -1


def maps_to_bytes(example: AttentionExample) -> bytes:
    """Return the bytes of ``attention.safetensors``."""
    parts = _map_parts(example, "")
    for number, other in enumerate(example.others):
        parts |= _map_parts(other, f"{number}.")
    if example.kind:
        parts["kinds"] = _texts([example.kind, *(other.kind for other in example.others)])
    return tensors.save(parts)


def _map_parts(example: AttentionExample, prefix: str) -> Arrays:
    targets = [_NO_TARGET if target is None else target for target in example.targets]
    return {
        f"{prefix}maps": np.ascontiguousarray(example.maps, dtype=np.float32),
        f"{prefix}targets": np.array(targets, dtype=np.int64),
        f"{prefix}tokens": _texts(example.tokens),
    }


def maps_from_bytes(data: bytes) -> AttentionExample:
    """Return the maps that ``maps_to_bytes`` wrote."""
    try:
        found = tensors.load(data)
        first, *kinds = parse_json(found["kinds"].tobytes()) if "kinds" in found else [""]
        others = [_read_maps(found, f"{number}.", kind) for number, kind in enumerate(kinds)]
        return replace(_read_maps(found, "", first), others=tuple(others))
    except (SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"attention.safetensors holds no attention maps: {error}") from None


def _read_maps(found: Mapping[str, NDArray[Any]], prefix: str, kind: str) -> AttentionExample:
    targets = found[f"{prefix}targets"].tolist()
    return AttentionExample(
        maps=found[f"{prefix}maps"],
        tokens=tuple(parse_json(found[f"{prefix}tokens"].tobytes())),
        targets=tuple(None if number == _NO_TARGET else number for number in targets),
        kind=kind,
    )


def samples_to_bytes(samples: Sequence[Sample]) -> bytes:
    """Return the bytes of ``samples.safetensors``."""
    parts = {"texts": _texts([[one.text, one.truth, one.answer] for one in samples])}
    pictures = [one.pictures for one in samples if one.pictures is not None]
    if pictures:
        if len(pictures) < len(samples):
            raise ValueError(
                "expected pictures in all samples or in none, got some without a picture"
            )
        parts["pictures"] = np.ascontiguousarray(np.stack(pictures), dtype=np.uint8)
    return tensors.save(parts)


def samples_from_bytes(data: bytes) -> tuple[Sample, ...]:
    """Return the samples that ``samples_to_bytes`` wrote."""
    try:
        found = tensors.load(data)
        texts = parse_json(found["texts"].tobytes())
        pictures = found.get("pictures", [None] * len(texts))
        return tuple(
            Sample(text=text, truth=truth, answer=answer, pictures=picture)
            for (text, truth, answer), picture in zip(texts, pictures, strict=True)
        )
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"samples.safetensors holds no samples: {error}") from None


def _texts(values: Sequence[Any]) -> NDArray[Any]:
    """Return the bytes of texts in JSON, as an array. A file of safetensors holds only numbers."""
    return np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)
