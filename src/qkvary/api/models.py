"""Readers of arguments: a model, labels and numbers of tokens, in all their usual forms."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from qkvary.arch.labels import as_label
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import Network
from qkvary.arch.own import import_file
from qkvary.arch.variants import AnyVariant
from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.checkpoints.reference_models import find_reference
from qkvary.storage.errors import UsageError
from qkvary.storage.paths import StrPath, read_path
from qkvary.text.units import LARGEST_COUNT, parse_count, parse_share

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel


class Configured(Protocol):
    """A network that was built, such as ``qk.LanguageModel``."""

    @property
    def config(self) -> Network:
        """Its configuration."""
        ...


Labels = str | AnyVariant | Sequence[str | AnyVariant]
"""One variant or several, each as a value or by its label."""


def load(
    checkpoint: StrPath,
    *,
    tokenizer: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    code: StrPath | None = None,
) -> LoadedModel:
    """Load a language model and its tokenizer.

    Args:
        checkpoint: The name of a checkpoint, or the path of its folder or file: our own, a llama2.c
            ``.bin``, a ``.gguf``, a character model, or a folder for transformers.
        tokenizer: For a checkpoint without one: ``gpt2``, ``bytes``, a ``tokenizer.json``, a
            ``tok512.bin``, or a ``.model`` of SentencePiece.
        device: The device of the network.
        dtype: The number format of the network; as stored by default.
        code: Your file with the classes that the network needs; it is imported, which runs it.

    Returns:
        ``network``, ready for decoding, and ``tokenizer``, or ``None`` for a checkpoint without
        one: ``model, tokenizer = qk.load(path)``.

    Raises:
        ValueError: if the checkpoint does not exist or has no known format, or the device or the
            number format does not exist.
        DamagedError: if it is damaged.
        UnsafeError: if it is a pickle, which could run code.
    """
    if code is not None:
        import_file(Path(code))
    loaded = load_checkpoint(checkpoint)
    if tokenizer is not None:
        loaded, _ = require_tokenizer(loaded, checkpoint, tokenizer)
    return loaded.to(device, dtype)


def find_model(given: StrPath | Model | Network | Configured) -> Model:
    """Return the model that is given by its name, file or hub id, as a value, or as a network.

    Raises:
        ValueError: if there is none, or its configuration cannot be read.
        DownloadError: if the hub cannot be reached.
    """
    if isinstance(given, str | os.PathLike):
        return find_reference(given)
    if isinstance(given, Model):
        return given
    network = getattr(given, "network", given)
    config = getattr(network, "config", network)
    if not isinstance(config, Network):
        raise UsageError(
            f"expected a model as its name, its path, a configuration or a network, got {given!r}"
        )
    return as_model(config)


def read_labels(given: Labels) -> tuple[AnyVariant, ...]:
    """Return variants that are given as one or several values or labels.

    Raises:
        ValueError: for a label that cannot be read.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(map(as_label, several))


def read_count(given: object) -> int:
    """Return a number of tokens or users, also from text such as ``32k``.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(given, str):
        return parse_count(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise UsageError(f"expected a whole number such as '32k', got {given!r}")
    if given > LARGEST_COUNT:
        raise ValueError(f"expected a whole number of at most {LARGEST_COUNT:,}, got {given:,}")
    return given


def read_texts(given: StrPath | Sequence[StrPath]) -> tuple[Path, ...]:
    """Return the paths of texts, of which one or several are given.

    Raises:
        ValueError: for anything but paths.
    """
    several = given if isinstance(given, list | tuple) else [given]
    return tuple(read_path(path, "a file or folder of texts") for path in several)


def read_share(given: float | str) -> float:
    """Return a share, also from text such as ``10%``.

    Raises:
        ValueError: for anything else.
    """
    return parse_share(str(given))
