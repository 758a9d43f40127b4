"""The two published checkpoints where ``QKVARY_DATA`` has them, and stand-ins that always exist.

A stand-in has random weights, and a ``reference.json`` that plain loops computed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data.merged import DATA, KINDS
from tests.reference import char_gpt, llama2c

__all__ = ["KINDS"]
_WRITERS: dict[str, Callable[[Path], None]] = {
    "stories260K": llama2c.write_stand_in,
    "shakespeare_char_mha": char_gpt.write_stand_in,
}


def find_model(name: str, kind: str, places: pytest.TempPathFactory) -> Path:
    """The folder of a checkpoint."""
    if kind == "published":
        assert DATA is not None
        return DATA / "checkpoints" / name
    folder = places.mktemp("stand-ins") / name
    _WRITERS[name](folder)
    return folder


def read_reference(folder: Path) -> dict[str, Any]:
    """What it must do."""
    return json.loads((folder / "reference.json").read_text("utf-8"))


def stories(kind: str) -> list[str]:
    """The texts that its loss is the mean over."""
    if kind == "stand-in":
        return list(llama2c.TEXTS)
    assert DATA is not None
    text = (DATA / "tinystories" / "tinystories_sample.txt").read_text("utf-8")
    found = [part.strip() for part in text.split("<|endoftext|>")]
    return [part for part in found if part][:-1][:100]


def held_out_characters(kind: str) -> str:
    """The text that its loss is the mean over."""
    if kind == "stand-in":
        return char_gpt.TEXT
    assert DATA is not None
    text = (DATA / "tinyshakespeare" / "input.txt").read_text("utf-8")
    return text[int(0.9 * len(text)) :]
