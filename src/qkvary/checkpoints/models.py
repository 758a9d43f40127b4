"""Stores a language model as a folder: weights, configuration, tokenizer and a manifest.

Loading is bit-exact and rejects a changed folder.
"""

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from qkvary.arch.canonical import canonical_json, from_dict, not_counted, own_classes, version_of
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.variants import UnknownPartError
from qkvary.checkpoints.structure import (
    check_structure,
    list_differences,
    make_language_model,
    name_some,
)
from qkvary.costs.parameters import network_parameters
from qkvary.data.tokenizers import Tokenizer, make_tokenizer
from qkvary.nn.devices import require_device
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.quantized_weights import quantize_weights
from qkvary.storage.durable import atomic_write_dir, make_directory
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.jsonvalues import DocumentFormat, JsonValue, decode, encode
from qkvary.storage.manifest import MANIFEST_NAME, describe, read_manifest
from qkvary.storage.untrusted_files import StrPath, explain, read_path, short_reason

FORMAT = DocumentFormat(name="a stored language model", version=1, key="model_format")
"""The version of the metadata; the manifest has a version of its own."""
KIND = "language model"
MOST_SHARED_LAYERS = 10_000
"""Maximum number of layers that share one block; a larger number counts as damage."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

_WEIGHTS, _CONFIG, _TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
TEMPLATE = "chat_template.jinja"
"""The file of a chat template, in our checkpoints and in Hugging Face folders."""


class LoadedModel(NamedTuple):
    """A network ready for decoding, with its tokenizer."""

    network: LanguageModel
    """The network, in evaluation mode on the CPU, in the stored dtype."""
    tokenizer: Tokenizer | None

    def to(self, device: str, dtype: str | None, weights: str | None = None) -> "LoadedModel":
        """Move the network to a device and a dtype, in place.

        Args:
            device: A torch device, such as ``cpu`` or ``cuda:1``.
            dtype: A torch dtype; ``None`` keeps the stored dtype.
            weights: ``int8`` replaces the matrices by 8-bit codes.

        Raises:
            UsageError: if the device, dtype or weight format does not exist.
        """
        if weights not in (None, "int8"):
            raise UsageError(f"expected int8 or no format for weights, got {weights!r}")
        known = {str(one).removeprefix("torch."): one for one in DTYPES}
        if dtype is not None and dtype not in known:
            raise UsageError(f"expected one of the dtypes {', '.join(known)}, got {dtype!r}")
        require_device(device)
        self.network.to(device, None if dtype is None else known[dtype])
        if weights is not None:
            quantize_weights(self.network)
        return self


class ExportResult(NamedTuple):
    """A checkpoint written for another program."""

    files: dict[str, int]
    """The size in bytes of each file, by name."""
    architecture: str
    """The name of the architecture or of the model class in the other program."""
    notes: tuple[str, ...]
    """The differences between the export and the network, one sentence each."""


def save_model(
    path: StrPath,
    model: LanguageModel,
    tokenizer: Tokenizer | None = None,
    *,
    chat_template: str | None = None,
) -> None:
    """Write a model as a folder, durably; an existing model is replaced.

    Raises:
        UsageError: if ``path`` holds something other than a model, the tokenizer does not fit, a
            weight is not finite, or a layer of the network was replaced.
        ResourceError: if the disk is full, broken or not writable.
    """
    path = read_path(path, "the path of a folder")
    check_structure(model)
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    try:
        _check_numbers(weights, "the model")
        _check_vocabulary(model.config, tokenizer, "the model")
    except DamagedError as error:
        raise UsageError(str(error)) from None
    if path.exists() and not holds(path, KIND):
        raise UsageError(f"{path} is not a model that qkvary saved; it is not overwritten")
    files = {
        _WEIGHTS: to_safetensors(weights),
        _CONFIG: canonical_json(model.config).encode() + b"\n",
    }
    if tokenizer is not None:
        files[_TOKENIZER] = encode(tokenizer.describe()).encode() + b"\n"
    if chat_template:
        files[TEMPLATE] = chat_template.encode()
    about: dict[str, JsonValue] = {"kind": KIND, **FORMAT.version_field}
    if own := own_classes(model.config):
        about["needs"] = {kind.__name__: version_of(kind) for kind in own}
    write_folder(path, files, about)


def write_folder(path: Path, files: Mapping[str, bytes], about: Mapping[str, JsonValue]) -> None:
    """Write a folder with a manifest, durably, and read it again."""
    make_directory(path.absolute().parent)
    manifest = describe(files, about=about)
    atomic_write_dir(path, {**files, MANIFEST_NAME: manifest.to_json()})
    read_manifest(path).read_all(path)


def load_model(path: Path) -> LoadedModel:
    """Load a model that ``save_model`` wrote.

    Raises:
        DamagedError: if the folder was changed.
        UnsafeError: if its manifest names a file outside of it.
    """
    manifest = read_manifest(path)
    about = manifest.about
    if about.get("kind") != KIND:
        raise DamagedError(f"expected a language model in {path}, got {about.get('kind', 'a run')}")
    FORMAT.check(about, path)
    weights = parse_weights(manifest.read(path, _WEIGHTS), str(path / _WEIGHTS))
    config = parse_config(manifest.read(path, _CONFIG), path / _CONFIG, len(weights))
    tokenizer = None
    if _TOKENIZER in manifest.files:
        tokenizer = parse_tokenizer(manifest.read(path, _TOKENIZER), path / _TOKENIZER)
    versions = {kind.__name__: version_of(kind) for kind in own_classes(config)}
    saved = cast("Mapping[str, str]", about.get("needs", {}))
    if changed := [name for name, one in versions.items() if saved.get(name) != one]:
        names = ", ".join(changed)
        warnings.warn(f"the code of {names} has changed since {path} was saved", stacklevel=3)
    return build_model(config, weights, tokenizer, str(path))


def build_model(
    config: LanguageModelConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    where: str,
) -> LoadedModel:
    """Build a network with these weights.

    Raises:
        DamagedError: if names, shapes or dtypes do not match the network, or a weight is not
            finite.
    """
    with explain(where, "has an invalid configuration"):
        expected = network_parameters(config).total
    found = sum(tensor.numel() for tensor in weights.values())
    # The size of parts from a user's file is not known before they are built.
    if expected != found and not not_counted(config):
        raise DamagedError(
            f"{where} has {found:,} weights, but its configuration requires {expected:,}"
        )
    dtype = _check_numbers(weights, where)
    _check_vocabulary(config, tokenizer, where)
    network = make_language_model(config).to(dtype)
    problems = list_differences(network.state_dict(), weights)
    if problems:
        raise DamagedError(f"{where} does not fit its network: {name_some(problems)}")
    network.load_state_dict(dict(weights))
    return LoadedModel(network.eval(), tokenizer)


def parse_weights(data: bytes, where: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises:
        DamagedError: if it is not a safetensors file.
    """
    try:
        return from_safetensors(data)
    except (SafetensorError, KeyError, ValueError, OverflowError, RuntimeError) as error:
        raise DamagedError(f"{where} is not a safetensors file: {short_reason(error)}") from None


def _check_numbers(weights: Mapping[str, Tensor], where: str) -> torch.dtype:
    formats = {tensor.dtype for tensor in weights.values()}
    if len(formats) != 1 or not formats <= set(DTYPES):
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in formats))
        raise DamagedError(
            f"{where} has weights in {names or 'no format'}, expected all weights in the same "
            "format: float64, float32, bfloat16 or float16"
        )
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise DamagedError(f"{where} has a weight that is not finite, in {name}")
    return formats.pop()


def _check_vocabulary(config: LanguageModelConfig, tokenizer: Tokenizer | None, where: str) -> None:
    # A table may be padded: rows after the last token are never read.
    if tokenizer is not None and tokenizer.vocabulary > config.vocabulary:
        raise DamagedError(
            f"{where} has a vocabulary of {config.vocabulary} tokens, but its tokenizer has "
            f"{tokenizer.vocabulary}"
        )


def holds(path: Path, kind: str) -> bool:
    """Return whether a folder has an undamaged manifest of this kind."""
    with contextlib.suppress(DamagedError):
        return read_manifest(path).about.get("kind") == kind
    return False


def parse_config(data: bytes, path: Path, tensors: int) -> LanguageModelConfig:
    """Parse the bytes of ``config.json``; ``tensors`` bounds the number of layers.

    Raises:
        DamagedError: if the configuration is invalid.
    """
    refused = f"{path} is not a configuration of a language model"
    try:
        fields = cast("dict[str, Any]", decode(data))
        layers = fields["num_layers"]
        # Checked first, because decoding allocates all layers.
        most = MOST_SHARED_LAYERS if fields.get("shared_blocks") is True else tensors
        if isinstance(layers, int) and layers <= most:
            return from_dict(LanguageModelConfig, fields)
    except UnknownPartError as error:
        raise UsageError(
            f"{path}: {error}; to import the file that registers this part, call "
            "qk.load(path, code=FILE)"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{refused}: {short_reason(error)}") from None
    raise DamagedError(f"{refused}: it states more layers than there are tensors ({tensors})")


def parse_tokenizer(data: bytes, path: Path) -> Tokenizer:
    """Parse our description of a tokenizer.

    Raises:
        DamagedError: if it is invalid.
    """
    try:
        return make_tokenizer(cast("dict[str, Any]", decode(data)))
    except (ValueError, AttributeError) as error:
        raise DamagedError(f"{path} is not a tokenizer: {error}") from None
