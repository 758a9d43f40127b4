"""The samples of a finished run, written and read as safetensors without torch."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qkvary.storage.errors import DamagedError
from qkvary.storage.untrusted_files import parse_json
from qkvary.tasks.examples import Sample


def samples_to_bytes(samples: Sequence[Sample]) -> bytes:
    """Return the bytes of ``samples.safetensors``.

    Raises:
        ValueError: if only some have pictures, or pictures of several sizes.
    """
    texts = json.dumps([[one.text, one.truth, one.answer] for one in samples]).encode()
    parts: dict[str, NDArray[Any]] = {"texts": np.frombuffer(texts, dtype=np.uint8)}
    pictures = [one.pictures for one in samples if one.pictures is not None]
    if pictures:
        if len(pictures) < len(samples):
            raise ValueError("expected pictures in all samples or in none, got them in some")
        parts["pictures"] = np.ascontiguousarray(np.stack(pictures), dtype=np.uint8)
    return save(parts)


def samples_from_bytes(data: bytes) -> tuple[Sample, ...]:
    """Return the samples that ``samples_to_bytes`` wrote.

    Raises:
        DamagedError: if the bytes are not samples.
    """
    try:
        found = load(data)
        texts = parse_json(found["texts"].tobytes())
        pictures = found.get("pictures", [None] * len(texts))
        return tuple(
            Sample(text=text, truth=truth, answer=answer, pictures=picture)
            for (text, truth, answer), picture in zip(texts, pictures, strict=True)
        )
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"samples.safetensors holds no samples: {error}") from None
