"""Reads an argument that is a model with weights: a checkpoint, or the result of ``qk.load``."""

from __future__ import annotations

import os
from typing import cast

from qkvary.api.models import load
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.paths import StrPath, read_name

Checkpoint = StrPath | LoadedModel | tuple[LanguageModel, Tokenizer | None]
"""A checkpoint by its name or path, or what ``qk.load`` returned."""


def open_checkpoint(model: object) -> tuple[LoadedModel, str]:
    """Return a loaded model and its name.

    Args:
        model: A ``Checkpoint``, or what a caller gives instead.

    Raises:
        ValueError: if there is no such checkpoint, or it is not one.
        DamagedError: if the checkpoint is damaged.
    """
    if isinstance(model, str | os.PathLike):
        path = read_name(model, "the name or path of a checkpoint")
        return load(path), path
    pair = cast("tuple[object, ...]", model) if isinstance(model, tuple) else ()
    match pair:
        case (LanguageModel() as network, None | Tokenizer() as tokenizer):
            return LoadedModel(network, tokenizer), "the given network"
        case _:
            kinds = ", ".join(type(one).__name__ for one in pair)
            raise ValueError(
                "expected the name or path of a checkpoint, or a network with its tokenizer as "
                f"qk.load returns them, got {f'({kinds})' if pair else type(model).__name__}"
            )
