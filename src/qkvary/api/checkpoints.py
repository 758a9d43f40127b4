"""What a function takes as a model with weights: a checkpoint, or what ``qk.load`` returned."""

from __future__ import annotations

from pathlib import Path

from qkvary.api.models import load
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel

Checkpoint = str | Path | LoadedModel | tuple[LanguageModel, Tokenizer | None]
"""A checkpoint by its name or path, or what ``qk.load`` returned."""


def open_checkpoint(model: Checkpoint) -> tuple[LoadedModel, str]:
    """Return a loaded model, and what it is called.

    Raises:
        ValueError: if there is no such checkpoint, or it is not one.
        DamagedError: if the checkpoint is damaged.
    """
    if isinstance(model, str | Path):
        return load(model), str(model)
    if isinstance(model, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        return LoadedModel(*model), "the given network"
    raise ValueError(
        "expected the name or path of a checkpoint, or a network with its tokenizer as qk.load "
        f"returns them, got {type(model).__name__}"
    )
