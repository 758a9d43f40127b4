"""Loads checkpoints: the project's own format, and one module per foreign format.

Torch-free until a checkpoint is loaded.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from qkvary.data.checkpoint_names import find_checkpoint
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.data.tokenizers import ByteTokenizer, Tokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.manifest import MANIFEST_NAME, read_manifest
from qkvary.storage.untrusted_files import (
    MAX_SIDE_FILE_BYTES,
    StrPath,
    read_file,
    read_path,
    refuse_pickles,
)

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel

EXPORT_KIND = "transformers export"
"""The ``kind`` in the manifest of an export for transformers."""

BYTES = 256
_FOLDER = Path(__file__).parent / "formats"


def format_names() -> tuple[str, ...]:
    """Return the names of the format modules."""
    stems = (path.stem for path in _FOLDER.glob("*.py"))
    return tuple(sorted(stem for stem in stems if stem[0] != "_"))


def load_format(name: str) -> ModuleType:
    """Return the module of a format; it has the title ``FORMAT``, ``recognises`` and ``load``."""
    return import_module(f"qkvary.checkpoints.formats.{name}")


def require_tokenizer(
    loaded: LoadedModel, name: StrPath, reference: str | None
) -> tuple[LoadedModel, Tokenizer]:
    """Give a checkpoint without a tokenizer the named tokenizer, and return both.

    ``reference`` is anything that :func:`load_tokenizer` accepts, a ``tok512.bin`` of llama2.c,
    or a ``.model`` of SentencePiece; None stands for the checkpoint's own tokenizer.

    Raises:
        UsageError: if there is no tokenizer, if ``reference`` is given although the checkpoint has
            its own tokenizer, or if the tokenizer does not fit the checkpoint.
    """
    vocabulary = loaded.network.config.vocabulary
    if reference is None:
        if loaded.tokenizer is not None:
            return loaded, loaded.tokenizer
        raise UsageError(
            f"{name} has no tokenizer: give one with --tokenizer (gpt2, bytes, a tokenizer.json, a "
            "tok512.bin of llama2.c, or a .model of SentencePiece)"
        )
    if loaded.tokenizer is not None:
        raise UsageError(f"expected no --tokenizer with {name}, which has its own, got {reference}")
    tokenizer = _load_tokenizer(reference, vocabulary)
    if tokenizer.vocabulary > vocabulary:
        raise UsageError(
            f"expected a tokenizer of at most {vocabulary:,} tokens for {name}, got {reference} "
            f"with {tokenizer.vocabulary:,}"
        )
    return loaded._replace(tokenizer=tokenizer), tokenizer


def _load_tokenizer(reference: str, vocabulary: int) -> Tokenizer:
    if reference == "bytes":
        # A network with a vocabulary of 256 has no separator.
        return ByteTokenizer(has_separator=vocabulary > BYTES)
    path = read_path(reference, "a tokenizer")
    if path.suffix not in (".bin", ".model"):
        return load_tokenizer(reference)
    data = read_file(path, limit=MAX_SIDE_FILE_BYTES)
    try:
        if path.suffix == ".model":
            return import_module("qkvary.checkpoints.sentencepiece").read_pieces(data, str(path))
        return import_module("qkvary.checkpoints.formats.llama2c").read_tokenizer(
            data, vocabulary, str(path)
        )
    except DamagedError as error:
        raise UsageError(str(error)) from None


def check_output(reference: StrPath, out: StrPath) -> None:
    """Check that an output does not replace the checkpoint from which it is made.

    Raises:
        UsageError: if the folder is or contains the checkpoint, or if the checkpoint does not
        exist.
    """
    path, target = find_checkpoint(reference).resolve(), read_path(out, "the path of a folder")
    if target.exists() and any(target.samefile(one) for one in (path, *path.parents)):
        raise UsageError(
            f"expected a folder other than the checkpoint's own, got {target}: the weights of the "
            "checkpoint would be lost"
        )


def load_checkpoint(reference: StrPath) -> LoadedModel:
    """Load a language model and its tokenizer, if it has one, from any known format.

    Raises:
        UsageError: if the checkpoint does not exist or has no known format.
        DamagedError: if the checkpoint is damaged.
        UnsafeError: if the checkpoint is a pickle, which could run code.
    """
    path = find_checkpoint(reference)
    if (path / MANIFEST_NAME).is_file() and read_manifest(path).about.get("kind") != EXPORT_KIND:
        return import_module("qkvary.checkpoints.models").load_model(path)
    formats = [load_format(name) for name in format_names()]
    for one in formats:
        if one.recognises(path):
            return one.load(path)
    refuse_pickles(path)
    known = "; ".join(one.FORMAT for one in formats)
    raise UsageError(
        f"expected a checkpoint of a known format, got {path}; choices: a folder that save_model "
        f"wrote; {known}"
    )
