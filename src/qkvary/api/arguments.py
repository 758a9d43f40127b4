"""Readers of arguments in all their usual forms: a model, a checkpoint, labels, numbers, paths."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from qkvary.api.options import NETWORK, Checkpoint, Count, Labels, NetworkOptions
from qkvary.arch.labels import as_label
from qkvary.arch.models import Model, as_model
from qkvary.arch.networks import Network
from qkvary.arch.variants import AnyVariant
from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.storage.errors import ResourceError, UsageError
from qkvary.storage.paths import StrPath, read_name, read_path
from qkvary.text.units import parse_share, read_count

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel

MOST_THREADS = 1024
"""Threads or processes that any machine can be expected to start."""


def find_model(given: object) -> Model:
    """Return the model that is given by its name, file or hub id, as a value, or as a network.

    Raises:
        ValueError: if there is none, or its configuration cannot be read.
        DownloadError: if the hub cannot be reached.
    """
    if isinstance(given, str | os.PathLike):
        # Its table of published models takes longer to read than most verbs take.
        from qkvary.checkpoints.reference_models import find_reference

        return find_reference(cast("str | os.PathLike[str]", given))
    if isinstance(given, Model):
        return given
    network = getattr(given, "network", given)
    config = getattr(network, "config", network)
    if not isinstance(config, Network):
        raise UsageError(
            f"expected a model as its name, its path, a configuration or a network, got {given!r}"
        )
    return as_model(config)


def open_checkpoint(
    given: Checkpoint,
    tokenizer: StrPath | None = None,
    options: NetworkOptions = NETWORK,
    *,
    speaks: bool = False,
) -> "tuple[LoadedModel, str]":
    """Return a loaded model and its name.

    Args:
        given: A checkpoint, or what a caller gives instead.
        tokenizer: The tokenizer of a checkpoint without one.
        options: The device and numbers of the network; a given network stays where it is by
            default.
        speaks: Whether a tokenizer is needed.

    Raises:
        ValueError: if there is no such checkpoint, it is not one, or has no tokenizer.
        DamagedError: if the checkpoint is damaged.
    """
    loaded, name = _open(given)
    is_path = isinstance(given, str | os.PathLike)
    if tokenizer is not None or (speaks and is_path):
        reference = None if tokenizer is None else os.fspath(tokenizer)
        loaded, _ = require_tokenizer(loaded, name, reference)
    if speaks and loaded.tokenizer is None:
        raise UsageError("expected a checkpoint with a tokenizer, got one without")
    if is_path or any((options.device, options.dtype, options.weights)):
        device = options.device or str(next(loaded.network.parameters()).device)
        loaded = loaded.to(device, options.dtype, options.weights)
    return loaded, name


def _open(given: object) -> "tuple[LoadedModel, str]":
    if isinstance(given, str | os.PathLike):
        name = read_name(cast("object", given), "the name or path of a checkpoint")
        return load_checkpoint(name), name
    # A checkpoint's name is completed and refused without torch.
    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.nn.language_model import LanguageModel

    pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else ()
    match pair:
        case (LanguageModel() as network, None | Tokenizer() as tokenizer):
            return LoadedModel(network, tokenizer), "the given network"
        case _:
            kinds = ", ".join(type(one).__name__ for one in pair)
            raise ValueError(
                "expected the name or path of a checkpoint, or a network with its tokenizer as "
                f"qk.load returns them, got {f'({kinds})' if pair else type(given).__name__}"
            )


def read_labels(given: Labels) -> tuple[AnyVariant, ...]:
    """Return variants that are given as one or several values or labels.

    Raises:
        ValueError: for a label that cannot be read.
    """
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return tuple(map(as_label, several))


def read_threads(given: Count | None, name: str) -> int | None:
    """Return a number of threads or processes, ``None`` for ``None``.

    Raises:
        ValueError: for anything but a positive whole number.
        ResourceError: if there are more than a machine can start.
    """
    number = read_count(given, name)
    if number is not None and number > MOST_THREADS:
        raise ResourceError(f"{name}: expected at most {MOST_THREADS:,}, got {number:,}")
    return number


def read_share(given: float | str, name: str) -> float:
    """Return a share, also from text such as ``10%``.

    Raises:
        ValueError: for anything else.
    """
    try:
        return parse_share(str(given))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def read_texts(given: object) -> tuple[Path, ...]:
    """Return the paths of one or several texts.

    Raises:
        ValueError: for anything but paths.
    """
    several = cast("Sequence[object]", given) if isinstance(given, list | tuple) else [given]
    return tuple(read_path(path, "a file or folder of texts") for path in several)
