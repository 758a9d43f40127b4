"""Describes and loads checkpoints of all known formats: the project's own and those of others.

Torch-free until a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qkvary.arch.families.sizes import has_size
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, as_model
from qkvary.checkpoints import llama2c_header
from qkvary.checkpoints.char_config import read_config
from qkvary.checkpoints.gguf import headers
from qkvary.checkpoints.gguf.configs import describe_latent, make_config, read_sizes
from qkvary.data.checkpoint_names import find_checkpoint
from qkvary.data.model_configs import CONFIG_NAME, load_config, resolve_model
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.data.tokenizers import ByteTokenizer, Tokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.manifest import MANIFEST_NAME, read_manifest
from qkvary.storage.untrusted_files import (
    MAX_SIDE_FILE_BYTES,
    StrPath,
    only_file,
    read_file,
    read_name,
    read_path,
    refuse_pickles,
)

if TYPE_CHECKING:
    from qkvary.checkpoints.models import LoadedModel

EXPORT_KIND = "transformers export"
"""The value of ``kind`` in the manifest of an export for transformers."""

BYTES = 256
_WEIGHTS = "model.safetensors"


class Format(NamedTuple):
    """A format of checkpoints; only loading needs torch."""

    title: str
    """The description of the format and its files in messages."""
    recognises: Callable[[Path], object]
    """Returns a true value if a file or folder has this format; earlier formats are tried first."""
    describe: Callable[[Path], Model]
    """Returns the model without weights."""
    loader: str
    """The function that loads a file or folder: its module in ``checkpoints``, and its name."""

    def load(self, path: Path) -> LoadedModel:
        """Load the network and its tokenizer, if there is one."""
        module, _, name = self.loader.rpartition(".")
        return getattr(import_module(f"qkvary.checkpoints.{module}"), name)(path)


def _is_saved(path: Path) -> bool:
    is_ours = (path / MANIFEST_NAME).is_file()
    return is_ours and read_manifest(path).about.get("kind") != EXPORT_KIND


def _has_config(path: Path, text: bytes) -> bool:
    config = path / CONFIG_NAME
    return config.is_file() and text in read_file(config, limit=MAX_SIDE_FILE_BYTES)


def _describe_characters(path: Path) -> Model:
    title, content = load_config(path)
    return as_model(read_config(content, str(path / CONFIG_NAME)), title)


def _describe_gguf(path: Path) -> Model:
    file = only_file(path, headers.list_files(path))
    sizes = read_sizes(headers.read_file(file), str(file))
    config = make_config(sizes)
    if config is None:
        return read_model(describe_latent(sizes), file.stem)
    return as_model(config, file.stem)


def _describe_llama2c(path: Path) -> Model:
    file = only_file(path, llama2c_header.list_files(path))
    return as_model(llama2c_header.make_config(llama2c_header.read_file_header(file)), file.stem)


FORMATS = (
    Format("a folder that save_model wrote", _is_saved, resolve_model, "models.load_model"),
    Format(
        "GGUF (a .gguf file of llama.cpp)",
        headers.list_files,
        _describe_gguf,
        "formats.gguf.load",
    ),
    Format(
        f"a qkvary network that transformers saved ({_WEIGHTS}, and its {CONFIG_NAME})",
        partial(_has_config, text=b'"qkvary"'),
        resolve_model,
        "formats.transformers_folder.load",
    ),
    Format(
        f"a character model ({_WEIGHTS}, and a {CONFIG_NAME} that lists its chars)",
        partial(_has_config, text=b'"chars"'),
        _describe_characters,
        "formats.char_gpt.load",
    ),
    Format(
        f"a language model that transformers saved ({CONFIG_NAME}, and safetensors)",
        partial(_has_config, text=b'"model_type"'),
        resolve_model,
        "formats.stock_folder.load",
    ),
    # The last one, because a file with its suffix may hold anything.
    Format(
        "llama2.c (a .bin file, with its tokenizer tok*.bin in the same folder)",
        llama2c_header.list_files,
        _describe_llama2c,
        "formats.llama2c.load",
    ),
)
"""All formats, in the order in which they are tried."""


def _find_format(path: Path) -> Format | None:
    return next((one for one in FORMATS if one.recognises(path)), None)


def _find_folder(path: Path) -> Path:
    """Return the folder of a ``model.safetensors``, or any other path unchanged."""
    is_part = path.name == _WEIGHTS and path.is_file()
    return path.absolute().parent if is_part else path


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
    """Refuse an output folder that contains the checkpoint, or that would take over its name.

    Raises:
        UsageError: if the folder is or contains the checkpoint or has its name as its path, or if
        the checkpoint does not exist.
    """
    path, target = find_checkpoint(reference).resolve(), read_path(out, "the path of a folder")
    if target.exists() and any(target.samefile(one) for one in (path, *path.parents)):
        raise UsageError(
            f"expected a folder other than the checkpoint's own, got {target}: the weights of the "
            "checkpoint would be lost"
        )
    # An existing path takes precedence over a name.
    if target.resolve() == read_path(reference).resolve():
        raise UsageError(
            f"expected a folder whose path differs from the checkpoint's name, got {out}: the name "
            "would then stand for the new network"
        )


def load_checkpoint(reference: StrPath) -> LoadedModel:
    """Load a language model and its tokenizer, if it has one, from any known format.

    Raises:
        UsageError: if the checkpoint does not exist or has no known format.
        DamagedError: if the checkpoint is damaged.
        UnsafeError: if the checkpoint is a pickle, which could run code.
    """
    path = _find_folder(find_checkpoint(reference))
    if (found := _find_format(path)) is not None:
        return found.load(path)
    refuse_pickles(path)
    raise UsageError(
        f"expected a checkpoint of a known format, got {path}; choices: "
        f"{'; '.join(one.title for one in FORMATS)}"
    )


def find_reference(reference: StrPath) -> Model:
    """Return the model of a named size, a local file or folder, or a hub id, in this order.

    Local checkpoints are named as in :func:`load_checkpoint`. No weights are loaded.
    """
    name = read_name(reference, "the name or path of a model")
    path = None
    if not has_size(name):
        # If it is no checkpoint, the error about the configuration names all choices.
        with suppress(UsageError, OSError):
            path = _find_folder(find_checkpoint(name))
    found = None if path is None else _find_format(path)
    return resolve_model(path or name) if found is None else found.describe(path or Path(name))
