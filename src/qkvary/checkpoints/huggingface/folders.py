"""A language model as a folder that ``from_pretrained`` loads: its own class, GPT-2, or Llama.

Written at once, with a manifest: the folder is complete or not there. transformers does not look at
the manifest; who loads it here does.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from safetensors.torch import save as to_safetensors
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig

from qkvary.checkpoints.catalog import EXPORT_KIND, is_export
from qkvary.checkpoints.formats.transformers_folder import OWN_TOKENIZER
from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.checkpoints.huggingface.fast_tokenizers import FastTokenizer, convert_tokenizer
from qkvary.checkpoints.huggingface.stock import Stock, export_stock, find_obstacle
from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import Tokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.durable import atomic_write_dir, make_directory
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.jsonvalues import encode
from qkvary.storage.manifest import MANIFEST_NAME, describe, read_manifest

Target = Stock | Literal["transformers"]
"""What a network may become: a class of ours, or an architecture that every engine knows."""

_CLASSES: dict[Stock, str] = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM"}


class Exported(NamedTuple):
    """What was written."""

    files: dict[str, int]
    """Bytes of each file."""
    architecture: str
    """The class that loads it."""
    notes: tuple[str, ...]
    """What is lost or different, a sentence each."""


class _Weights(NamedTuple):
    config: PreTrainedConfig
    architecture: str
    tensors: dict[str, Tensor]
    notes: tuple[str, ...]


def export_folder(loaded: LoadedModel, path: Path, *, to: Target = "transformers") -> Exported:
    """Write a model for transformers; an export that stands there already is replaced.

    Args:
        loaded: A network, and its tokenizer where it has one.
        path: The folder.
        to: What it becomes.

    Raises:
        UsageError: if the architecture cannot express the network, or something else stands there.
        ResourceError: if the disk is full, broken or not writable.
    """
    if path.exists() and not _holds_export(path):
        raise UsageError(f"{path} is no export of this program; it is not overwritten")
    weights = _wrap(loaded.network) if to == "transformers" else _translate(loaded.network, to)
    fast = None if loaded.tokenizer is None else convert_tokenizer(loaded.tokenizer)
    _name_tokens(weights.config, loaded.tokenizer)
    files = {
        "config.json": weights.config.to_json_string().encode(),
        "generation_config.json": _generation(loaded.tokenizer).encode(),
        "model.safetensors": to_safetensors(weights.tensors, metadata={"format": "pt"}),
    }
    if loaded.tokenizer is not None and fast is not None:
        files |= _describe_tokenizer(loaded.tokenizer, fast, loaded.network.config.max_tokens)
    manifest = describe(files, about={"kind": EXPORT_KIND, "architecture": weights.architecture})
    make_directory(path.absolute().parent)
    atomic_write_dir(path, {**files, MANIFEST_NAME: manifest.to_json()})
    read_manifest(path).read_all(path)
    return Exported(
        files={name: len(data) for name, data in files.items()},
        architecture=weights.architecture,
        notes=(*weights.notes, *(() if fast is None else fast.notes)),
    )


def _wrap(network: LanguageModel) -> _Weights:
    model = QKVForCausalLM.wrap(network)
    config = model.config
    config.architectures = [QKVForCausalLM.__name__]
    tensors = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    notes = ("qkvary.checkpoints.huggingface.causal.register() has to be called before loading",)
    return _Weights(config, QKVForCausalLM.__name__, tensors, notes)


def _translate(network: LanguageModel, to: Stock) -> _Weights:
    try:
        stock = export_stock(network, to)
    except ValueError as error:
        other: Stock = "llama" if to == "gpt2" else "gpt2"
        able = other if find_obstacle(network.config, other) is None else "transformers"
        raise UsageError(f"{error}; --to {able} can") from None
    tensors = dict(stock.weights)
    if stock.config.tie_word_embeddings:
        # Stored once; transformers ties it again.
        del tensors["lm_head.weight"]
    stock.config.architectures = [_CLASSES[to]]
    stock.config.dtype = network.embedding.dtype
    return _Weights(stock.config, _CLASSES[to], _apart(tensors), stock.notes)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of memory of their own: copies of one projection are one tensor here."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _name_tokens(config: PreTrainedConfig, tokenizer: Tokenizer | None) -> None:
    if tokenizer is not None:
        config.bos_token_id = tokenizer.beginning  # pyright: ignore[reportAttributeAccessIssue]
        config.eos_token_id = tokenizer.separator  # pyright: ignore[reportAttributeAccessIssue]


def _generation(tokenizer: Tokenizer | None) -> str:
    config = GenerationConfig()
    if tokenizer is not None:
        ends = list(tokenizer.ends)
        config.bos_token_id = tokenizer.beginning
        config.eos_token_id = ends or None
        config.pad_token_id = tokenizer.separator
    return config.to_json_string()


def _describe_tokenizer(
    tokenizer: Tokenizer, fast: FastTokenizer, max_tokens: int
) -> dict[str, bytes]:
    """The tokenizer for transformers, and for whoever loads the folder here."""
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        "bos_token": fast.beginning,
        "eos_token": fast.end,
        "pad_token": fast.end,
    }
    known = {name: value for name, value in about.items() if value is not None}
    return {
        "tokenizer.json": fast.library.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(known, indent=2).encode(),
        OWN_TOKENIZER: encode(tokenizer.describe()).encode() + b"\n",
    }


def _holds_export(path: Path) -> bool:
    try:
        return is_export(path)
    except DamagedError:
        return False
