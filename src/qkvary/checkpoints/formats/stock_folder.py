"""Reads language models that transformers saved, without transformers: Llama, Qwen, Gemma, ...

A folder has a ``config.json``, and safetensors in one file or in shards with an index. The
supported families are listed in ``arch.families.language_models``; DeepSeek V3 is also supported if
it has neither experts nor low-rank queries. Only the language model of a multimodal model is
loaded.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from qkvary.arch.families.language_models import BLOCKS, read_gpt2, read_language_model
from qkvary.arch.families.table import find_text
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.formats.transformers_folder import (
    CONFIG,
    OWN_TOKENIZER,
    WEIGHTS,
    collect,
    read_config,
    read_own_tokenizer,
    read_part,
)
from qkvary.checkpoints.latent_networks import (
    LATENT,
    LatentSizes,
    read_latent_network,
    read_latent_sizes,
)
from qkvary.checkpoints.models import LoadedModel, build_model, parse_weights
from qkvary.checkpoints.sentencepiece import read_pieces
from qkvary.checkpoints.stock_names import list_tensors
from qkvary.checkpoints.stock_parts import read_weights, rotated_first
from qkvary.data.model_configs import parse_config
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file, refuse_pickles

INDEX = "model.safetensors.index.json"
LIBRARY_TOKENIZER, PIECES = "tokenizer.json", "tokenizer.model"

_FAMILIES = ("gpt2", *BLOCKS, LATENT)
_PREFIX = "transformer."
_OF_TEXT = ("language_model.model.", "model.language_model.")
"""Prefixes of the names of the language model's tensors in a multimodal model."""
_OF_OTHERS = ("vision_tower", "multi_modal_projector")
"""Prefixes of the names of tensors that lie outside the language model and are not loaded."""
_BUFFERS = (".attn.bias", ".attention.bias", ".masked_bias", ".inv_freq")
"""Suffixes of the names of tensors that older files contain, and that are not loaded. They are
causal masks and rotary frequencies, and both follow from the configuration."""


def load(folder: Path) -> LoadedModel:
    """Load the network and the tokenizer in the same folder."""
    family, sizes = _read(folder)
    where = str(folder)
    named = ((_complete(name, family), tensor) for name, tensor in _read_weights(folder))
    tensors = collect(((name, one) for name, one in named if name is not None), where)
    if sizes.num_layers > len(tensors):
        raise DamagedError(
            f"{folder / CONFIG} states {sizes.num_layers} layers, but the folder has only "
            f"{len(tensors)} tensors"
        )
    ends = {row.ours: row.theirs for row in list_tensors(family, 1)}
    embedding, head = (tensors.get(ends[name]) for name in ("embedding", "head_weight"))
    if _is_head_tied(embedding, head, where, declared=sizes.tied_head):
        # A copy of the embedding, which files may lack.
        tensors.pop(ends["head_weight"], None)
    elif head is None:
        raise DamagedError(f"{where} lacks the tensor {ends['head_weight']}")
    else:
        sizes = replace(sizes, tied_head=False)
    if isinstance(sizes, LatentSizes):
        config, weights = read_latent_network(sizes, tensors, "theirs", where)
    else:
        config = sizes
        weights = read_weights(tensors, family, sizes, "theirs", rotated_first, where)
    return build_model(config, weights, _read_tokenizer(folder), where)


def _is_head_tied(
    embedding: Tensor | None, head: Tensor | None, where: str, *, declared: bool
) -> bool:
    """Return whether the output head shares the embedding.

    It does not if the file has a head with other values; a warning says so.
    """
    if not declared or embedding is None or head is None:
        return declared
    if embedding.dtype == head.dtype and torch.equal(embedding, head):
        return True
    warnings.warn(
        f"{where} sets tie_word_embeddings to true, but its lm_head.weight differs from the "
        "embedding: the stored head is used, as in transformers",
        stacklevel=2,
    )
    return False


def _read(folder: Path) -> tuple[str, LanguageModelConfig | LatentSizes]:
    content = read_config(folder)
    try:
        family, fields = find_text(content)
        if family not in _FAMILIES:
            raise fields.refuse("model_type", f"a supported family ({', '.join(_FAMILIES)})")
        if family == "gpt2":
            return family, read_gpt2(fields)
        if family == LATENT:
            return family, read_latent_sizes(fields)
        return family, read_language_model(family, fields)
    except ValueError as error:
        raise UsageError(f"{folder / CONFIG} cannot be used: {error}") from None


def _read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        if not (folder / INDEX).is_file():
            refuse_pickles(folder)
            raise DamagedError(f"{folder} has no {WEIGHTS}")
        names = _list_shards(folder / INDEX)
    for name in names:
        if not (folder / name).is_file():
            raise DamagedError(f"{folder} has no {name}, which its index names")
        yield from parse_weights(read_part(folder, name), str(folder / name)).items()


def _list_shards(index: Path) -> list[str]:
    try:
        content = parse_config(read_file(index, limit=MAX_SIDE_FILE_BYTES), str(index))
    except ValueError as error:
        raise DamagedError(str(error)) from None
    shards = content.get("weight_map")
    names = cast("Mapping[str, object]", shards).values() if isinstance(shards, Mapping) else ()
    found = sorted({name for name in names if isinstance(name, str)})
    if not found or any(Path(name).name != name for name in found):
        raise DamagedError(f"{index} lists no shards, or lists shards outside its own folder")
    return found


def _complete(name: str, family: str) -> str | None:
    """Return the name that newer files give to a tensor, or ``None`` if the tensor is left out.

    ``name`` is the name in the file.
    """
    if name.endswith(_BUFFERS):
        return None
    if family == "gpt2":
        # Older files lack the prefix.
        return name if name.startswith((_PREFIX, "lm_head.")) else _PREFIX + name
    if name.removeprefix("model.").startswith(_OF_OTHERS):
        return None
    for prefix in _OF_TEXT:
        if name.startswith(prefix):
            return f"model.{name.removeprefix(prefix)}"
    return name.removeprefix("language_model.")


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    if (folder / OWN_TOKENIZER).is_file():
        return read_own_tokenizer(folder)
    if (folder / LIBRARY_TOKENIZER).is_file():
        return load_tokenizer(str(folder))
    if (folder / PIECES).is_file():
        path = folder / PIECES
        return read_pieces(read_file(path, limit=MAX_SIDE_FILE_BYTES), str(path))
    return None
