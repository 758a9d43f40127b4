"""GPT-2 and Llama as transformers saves them, read without transformers.

A ``config.json`` and safetensors, in one file or in shards with an index. GPT-2 keeps query, key
and value in one matrix that multiplies from the right; Llama's rotary embedding is ours.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from qkvary.arch.attention import PositionConfig
from qkvary.arch.families.attention_fields import Heads, rotary_section
from qkvary.arch.families.fields import Fields
from qkvary.arch.networks import Activation, BlockConfig, LanguageModelConfig
from qkvary.checkpoints.contradictions import collect, is_head_tied, warn_of_ignored
from qkvary.checkpoints.formats.transformers_folder import (
    CONFIG,
    OWN_TOKENIZER,
    WEIGHTS,
    read_folder,
    read_own_tokenizer,
    read_part,
)
from qkvary.checkpoints.latent_networks import Weights
from qkvary.checkpoints.models import LoadedModel, build_model, parse_weights
from qkvary.checkpoints.sentencepiece import read_pieces
from qkvary.checkpoints.stock_names import Row, StockArchitecture, list_tensors
from qkvary.data.model_configs import parse_config
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file, refuse_pickles

FORMAT = "GPT-2 or Llama as transformers saves them (config.json, and safetensors)"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = LIBRARY_TOKENIZER, PIECES = "tokenizer.json", "tokenizer.model"

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
}
_PREFIX = "transformer."
_TIED: Mapping[StockArchitecture, tuple[str, str]] = {
    "gpt2": ("transformer.wte.weight", "lm_head.weight"),
    "llama": ("model.embed_tokens.weight", "lm_head.weight"),
}
"""The names of embedding and head."""


def recognises(path: Path) -> bool:
    """Return whether a path is such a folder, or its weights."""
    folder = path.parent if path.name == WEIGHTS else path
    if not (folder / CONFIG).is_file():
        return False
    try:
        content = parse_config(read_file(folder / CONFIG, limit=MAX_SIDE_FILE_BYTES), CONFIG)
    except ValueError:
        return False
    kind = content.get("model_type")
    return isinstance(kind, str) and kind in _READERS


def load(path: Path) -> LoadedModel:
    """Load the network and the tokenizer in the same folder.

    Raises:
        UsageError: if a file cannot be read, or the network has parts that ours have not.
        DamagedError: if a file is missing or damaged.
        UnsafeError: if the weights are a pickle.
    """
    folder, content = read_folder(path)
    architecture, _ = _READERS[str(content["model_type"])]
    config = read_config(path)
    tensors = collect(
        ((_complete(name, architecture), tensor) for name, tensor in _read_weights(folder)),
        str(folder),
    )
    if config.num_layers > len(tensors):
        raise DamagedError(f"{folder / CONFIG} has {config.num_layers} layers, more than tensors")
    embedding, head = (tensors.get(name) for name in _TIED[architecture])
    tied = is_head_tied(embedding, head, str(folder), declared=config.tied_head)
    config = replace(config, tied_head=tied)
    _remove_buffers(tensors, config, str(folder))
    try:
        weights = _rename(tensors, architecture, config, str(folder))
    except KeyError as error:
        raise DamagedError(f"{folder} lacks the tensor {error.args[0]}") from None
    return build_model(config, weights, _read_tokenizer(folder), str(folder))


def read_config(path: Path) -> LanguageModelConfig:
    """Return the configuration of the network, without its weights.

    Raises:
        UsageError: if the network has parts that ours have not.
        DamagedError: if the file is missing or damaged.
    """
    folder, content = read_folder(path)
    kind = str(content["model_type"])
    try:
        return _READERS[kind][1](Fields(content, kind))
    except ValueError as error:
        raise UsageError(f"{folder / CONFIG} cannot be used: {error}") from None


def _read_gpt2(fields: Fields) -> LanguageModelConfig:
    fixed = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
    for name, expected in {**fixed, "add_cross_attention": False}.items():
        if fields.flag(name, default=expected) != expected:
            raise fields.refuse(name, str(expected).lower())
    activation = fields.text("activation_function", default="gelu_new")
    if activation not in _ACTIVATIONS:
        raise fields.refuse("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
    heads, d_model = fields.size("n_head"), fields.size("n_embd")
    return LanguageModelConfig(
        attention=Heads(d_model=d_model, count=heads, kv_count=heads).attend(
            bias=True, out_bias=True
        ),
        block=BlockConfig(
            d_ff=fields.size("n_inner", default=4 * d_model),
            activation=_ACTIVATIONS[activation],
            norm_eps=fields.number("layer_norm_epsilon", default=1e-5),
        ),
        num_layers=fields.layers("n_layer"),
        vocabulary=fields.size("vocab_size"),
        max_tokens=fields.size("n_positions"),
        positions="learned",
        tied_head=fields.flag("tie_word_embeddings", default=True),
    )


def _read_llama(fields: Fields) -> LanguageModelConfig:
    if fields.text("hidden_act", default="silu") != "silu":
        raise fields.refuse("hidden_act", "silu")
    if fields.flag("mlp_bias", default=False):
        raise fields.refuse("mlp_bias", "false")
    bias = fields.flag("attention_bias", default=False)
    heads = Heads(
        d_model=fields.size("hidden_size"),
        count=fields.size("num_attention_heads"),
        kv_count=fields.size("num_key_value_heads", default=fields.size("num_attention_heads")),
        dim=fields.optional_size("head_dim"),
    )
    rotation = PositionConfig(rotary_base=read_rotary_base(fields), rotary_fraction=1.0)
    return LanguageModelConfig(
        attention=heads.attend(positions="rotary", rotation=rotation, bias=bias, out_bias=bias),
        block=BlockConfig(
            d_ff=fields.size("intermediate_size"),
            activation="swiglu",
            norm="rmsnorm",
            norm_eps=fields.number("rms_norm_eps", default=1e-6),
            bias=False,
        ),
        num_layers=fields.layers("num_hidden_layers"),
        vocabulary=fields.size("vocab_size"),
        max_tokens=fields.size("max_position_embeddings", default=2048),
        positions="none",
        tied_head=fields.flag("tie_word_embeddings", default=False),
    )


def read_rotary_base(fields: Fields) -> float:
    """Return the base of rotary positions, from the place where transformers reads it.

    Args:
        fields: The configuration.

    Raises:
        ValueError: if they are scaled, or a value is no number.
    """
    nested = rotary_section(fields)
    kind = nested.text("rope_type", "type", default="default")
    if kind != "default":
        raise ValueError(f"expected plain rotary positions, got rope_type {kind:.40}")
    return nested.number("rope_theta", default=fields.number("rope_theta", default=10_000.0))


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
        raise DamagedError(f"{index} does not name shards of its folder")
    return found


def _remove_buffers(tensors: Weights, config: LanguageModelConfig, where: str) -> None:
    """Remove what older files have besides weights: causal masks and rotary frequencies."""
    other: list[str] = []
    for name in [name for name in tensors if name.endswith(tuple(_BUFFERS))]:
        tensor = tensors.pop(name).double()
        is_as_expected = next(test for end, test in _BUFFERS.items() if name.endswith(end))
        if not is_as_expected(tensor, config):
            other.append(name)
    warn_of_ignored(other, where)


def _is_causal(mask: Tensor, _config: LanguageModelConfig) -> bool:
    size = mask.shape[-1] if mask.dim() else 0
    causal = mask.new_ones(size, size).tril()
    return mask.numel() == size**2 and torch.equal(mask.view(size, size), causal)


def _are_frequencies(found: Tensor, config: LanguageModelConfig) -> bool:
    layer = config.layers[0]
    channels = torch.arange(0, layer.size_per_head, 2, dtype=torch.float64)
    expected = layer.position.rotary_base ** (-channels / layer.size_per_head)
    # They may be stored in 16 bits.
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=0.01)


_BUFFERS: Mapping[str, Callable[[Tensor, LanguageModelConfig], bool]] = {
    ".attn.bias": _is_causal,
    ".attn.masked_bias": lambda found, _config: bool((found <= -10_000).all()),
    ".inv_freq": _are_frequencies,
}
"""For tensors that are no weights, by the end of their names: whether they agree with the
configuration."""


def _rename(
    tensors: Weights, architecture: StockArchitecture, config: LanguageModelConfig, where: str
) -> Weights:
    """Return the tensors by our names; unknown ones are left and refused later."""
    found: Weights = {}
    for row in list_tensors(architecture, config.num_layers):
        tensor = tensors.pop(row.theirs, None)
        if config.tied_head and row.ours == "head_weight":
            # A copy of the embedding, which files may lack.
            continue
        if tensor is not None:
            found |= _convert(row, tensor)
        elif row.theirs.endswith(".weight"):
            raise KeyError(row.theirs)
    return collect((*found.items(), *tensors.items()), where)


def _complete(name: str, architecture: StockArchitecture) -> str:
    """Return the name in newer files; older ones of GPT-2 lack the prefix."""
    is_older = architecture == "gpt2" and not name.startswith((_PREFIX, "lm_head."))
    return _PREFIX + name if is_older else name


def _convert(row: Row, tensor: Tensor) -> Weights:
    names = row.ours.split(",")
    if row.change == "transposed" and tensor.dim() == 2:
        tensor = tensor.T
    # Parts of wrong shapes are refused with the others.
    parts = torch.atleast_1d(tensor).tensor_split(len(names))
    return {name: part.contiguous() for name, part in zip(names, parts, strict=True)}


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    if (folder / OWN_TOKENIZER).is_file():
        return read_own_tokenizer(folder)
    if (folder / LIBRARY_TOKENIZER).is_file():
        return load_tokenizer(str(folder))
    if (folder / PIECES).is_file():
        path = folder / PIECES
        return read_pieces(read_file(path, limit=MAX_SIDE_FILE_BYTES), str(path))
    return None


_READERS: Mapping[str, tuple[StockArchitecture, Callable[[Fields], LanguageModelConfig]]] = {
    "gpt2": ("gpt2", _read_gpt2),
    "llama": ("llama", _read_llama),
}
