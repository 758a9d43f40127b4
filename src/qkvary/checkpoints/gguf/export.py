"""Writes a language model as one file for llama.cpp: architecture, sizes and tensors.

A network that llama.cpp cannot compute is refused, with the reason. A partial rotation is written
as a full one whose divisors (``rope_freqs``) keep the other channels from rotating.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkvary.arch.attention import KV_NORM_EPS
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.configs import rotary_divisors
from qkvary.checkpoints.gguf.families import ARCHITECTURE, Expressed, convert_family, describe_sizes
from qkvary.checkpoints.gguf.files import Tensor as StoredTensor
from qkvary.checkpoints.gguf.files import pack_file
from qkvary.checkpoints.gguf.headers import BLOCKS, CHAT_TEMPLATE, MAGIC, TensorType
from qkvary.checkpoints.gguf.vocabularies import convert_tokenizer
from qkvary.checkpoints.latent_networks import latent_width
from qkvary.checkpoints.models import ExportResult, LoadedModel
from qkvary.checkpoints.stock_names import GGUF_NAMES, TITLES, StockArchitecture
from qkvary.checkpoints.stock_networks import (
    choose_architecture,
    count_kv_heads,
    find_losses,
    find_obstacle,
    plain_weights,
)
from qkvary.checkpoints.stock_parts import name_weights, paired_first, rotated_first
from qkvary.checkpoints.structure import check_structure
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.durable import make_directory, write_output
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_start

GELU_NOTES = {
    "gelu": (
        "llama.cpp reads the tanh form of GELU from a half-precision table, so its activations "
        "differ from this network's by up to 0.0005 plus 0.05 % of the value"
    ),
    "gelu-tanh": (
        "llama.cpp reads GELU from a half-precision table, so its activations differ from this "
        "network's by up to 0.05 % of the value"
    ),
}
LARGEST: Mapping[TensorType, int] = {"f16": 65_504, "q8_0": 127 * 65_504}
"""The largest value of each type; q8_0 stores integers up to 127, with scales in f16."""
SMALLEST = 2.0**-14
"""The smallest value that the types in ``LARGEST`` hold with full precision."""
ROPE_DIVISORS = "rope_freqs.weight"
FLOATS = ("position_embd.weight", ROPE_DIVISORS)
"""Matrices that every file stores in f32, like norms and biases."""
_FILE_TYPES: Mapping[TensorType, int] = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


class GgufNetwork(NamedTuple):
    """The metadata and tensors that describe a network in a GGUF file."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]
    notes: tuple[str, ...]


def export_gguf(
    loaded: LoadedModel, path: Path, kind: TensorType = "f32", *, chat_template: str | None = None
) -> ExportResult:
    """Write a model as a GGUF file for llama.cpp; an existing GGUF file is replaced."""
    if path.is_file() and read_start(path, len(MAGIC)) != MAGIC:
        raise UsageError(f"{path} is not a GGUF file; it is not overwritten")
    check_structure(loaded.network)
    network = convert_network(loaded.network, kind)
    vocabulary = convert_tokenizer(loaded.tokenizer, loaded.network.config.vocabulary)
    name = {"general.name": path.stem} if path.stem else {}
    chat = {CHAT_TEMPLATE: chat_template} if chat_template else {}
    metadata = {**network.metadata, **name, **vocabulary.metadata, **chat}
    data = pack_file(metadata, network.tensors)
    make_directory(path.absolute().parent)
    write_output(path, data)
    notes = (*network.notes, *vocabulary.notes)
    return ExportResult({path.name: len(data)}, metadata[ARCHITECTURE], notes)


def convert_network(network: LanguageModel, kind: TensorType) -> GgufNetwork:
    """Convert a network to a llama.cpp architecture that can express it."""
    config = network.config
    to = choose_architecture(config)
    obstacle = find_obstacle(config, to, _find_obstacles(config, to))
    architecture, sizes, values = (
        _convert_stock(network, to)
        if obstacle is None
        else convert_family(network, f"{TITLES[to]} can express, got one with {obstacle}")
    )
    tensors = {name: _store(name, one, kind) for name, one in values.items()}
    file = {"general.file_type": _FILE_TYPES[kind], "general.quantization_version": 2}
    metadata = {ARCHITECTURE: architecture, **file, **sizes}
    notes = [GELU_NOTES[one] for one in (config.block.activation,) if one in GELU_NOTES]
    if obstacle is None:
        stored = sum(one.numel() for name, one in values.items() if name != ROPE_DIVISORS)
        notes += find_losses(config, to, stored)
    return GgufNetwork(metadata, tensors, (*notes, *_find_notes(tensors, kind)))


def _convert_stock(network: LanguageModel, to: StockArchitecture) -> Expressed:
    config, name = network.config, GGUF_NAMES[to]
    weights = plain_weights(
        network,
        to,
        bias=any(layer.bias for layer in config.layers),
        out_bias=any(layer.out_bias for layer in config.layers),
    )
    if config.tied_head:
        del weights["head_weight"]
    # llama.cpp has one epsilon for all norms. Where this gain undoes a norm (latent_networks), it
    # depends on the root of the epsilon.
    for one in weights:
        if one.endswith("kv_norm.weight"):
            weights[one] = weights[one] * (config.block.norm_eps / KV_NORM_EPS) ** 0.5
    order = paired_first if to == "llama" else rotated_first
    tensors = dict(_list_divisors(config)) if to == "llama" else {}
    for row, weight in name_weights(weights.get, to, config, "gguf", order):
        values = weight.float()
        if row.gguf.endswith("attn_kv_b.weight"):
            # llama.cpp expects separate tensors of key and value.
            key, value = values.unflatten(0, (config.layers[0].num_heads, 2, -1)).unbind(dim=1)
            tensors[row.gguf.replace("attn_kv_b", "attn_k_b")] = key.mT
            tensors[row.gguf.replace("attn_kv_b", "attn_v_b")] = value
        else:
            tensors[row.gguf] = values
    return name, describe_sizes(config, name, _describe_sizes(config, to)), tensors


def _find_obstacles(config: LanguageModelConfig, to: StockArchitecture) -> Iterator[str]:
    """Yield the features that llama.cpp cannot compute although the architecture has them."""
    block, position = config.block, config.layers[0].position
    if to == "gpt2":
        if block.activation == "relu":
            yield "relu; choices: gelu-tanh, gelu"
        return
    if to == "deepseek":
        if any(layer.variant.kv_norm for layer in config.layers) and block.norm_eps != KV_NORM_EPS:
            yield f"norms with the epsilon {block.norm_eps}; choices: norm_eps {KV_NORM_EPS}"
        return
    for layer in config.layers:
        if layer.value_rope != "none":
            yield (
                f"values that are rotated keys ({layer.value_rope}), which llama.cpp does not "
                "rotate back; train a variant that llama.cpp supports: GQA-g, MQA, or "
                "Q-K=V@decoupled-16@kv-norm (as in qkvary train lm-10m-portable)"
            )
    scaling = position.scaling
    if scaling is not None and (scaling.depends_on_length or scaling.attention_factor != 1.0):
        yield f"rotary scaling {scaling.form} that depends on the length or scales the scores"
    size = config.layers[0].size_per_head
    if size % 2:
        yield f"heads of {size} channels; the number of channels must be even"
    if len({layer.position.rotary_dim(layer.size_per_head) for layer in config.layers}) > 1:
        yield "layers that rotate different numbers of channels"


def _list_divisors(config: LanguageModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor of factors that divide the rotary frequencies, unless all are 1."""
    size, position = config.layers[0].size_per_head, config.layers[0].position
    rotated = position.rotary_dim(size)
    divisors = rotary_divisors(size, rotated, position.rotary_base)
    if position.scaling is not None:
        scaled = position.scaling.divisors(rotated, position.rotary_base, 0)
        divisors[: len(scaled)] = map(operator.mul, divisors, scaled)
    if any(one != 1 for one in divisors):
        yield ROPE_DIVISORS, torch.tensor(divisors, dtype=torch.float32)


def _store(name: str, values: Tensor, kind: TensorType) -> StoredTensor:
    stored, shape, rows = kind, values.shape, values.abs().amax(dim=-1)
    has_small = kind in LARGEST and bool(((rows > 0) & (rows < SMALLEST)).any())
    if len(shape) < 2 or name in FLOATS or has_small:
        stored = "f32"
    elif (len(shape) > 2 and kind != "f32") or shape[-1] % BLOCKS[kind].size:
        # Selectors (zeros and ones) and products of small heads need more bits.
        stored = "f16"
    limit = LARGEST.get(stored, math.inf)
    if float(values.abs().max()) > limit:
        raise UsageError(f"{name} has weights above {limit:,}, the largest value of {stored}")
    return StoredTensor(values.contiguous().numpy(), stored)


def _describe_sizes(config: LanguageModelConfig, to: StockArchitecture) -> dict[str, Any]:
    layer, epsilon = config.layers[0], config.block.norm_eps
    size, base = layer.size_per_head, float(layer.position.rotary_base)
    if to == "gpt2":
        return {"attention.layer_norm_epsilon": epsilon}
    if to == "llama":
        return {
            "attention.head_count_kv": count_kv_heads(config),
            "attention.key_length": size,
            "attention.value_length": size,
            "attention.layer_norm_rms_epsilon": epsilon,
            "rope.dimension_count": size,
            "rope.freq_base": base,
        }
    width, rope = latent_width(layer), layer.variant.decoupled or 0
    return {
        # The cache holds one key of all channels; its first ones are the value.
        "attention.head_count_kv": 1,
        "attention.key_length": width + rope,
        "attention.value_length": width,
        "attention.key_length_mla": size + rope,
        "attention.value_length_mla": size,
        "attention.kv_lora_rank": width,
        # The query has one full-rank matrix.
        "attention.q_lora_rank": 0,
        "attention.layer_norm_rms_epsilon": epsilon,
        "rope.dimension_count": rope,
        "rope.freq_base": base,
        "leading_dense_block_count": config.num_layers,
        "expert_count": 0,
        "expert_used_count": 0,
        "expert_shared_count": 1,
        "expert_feed_forward_length": config.block.d_ff,
        "expert_weights_scale": 1.0,
    }


def _find_notes(tensors: Mapping[str, StoredTensor], kind: TensorType) -> Iterator[str]:
    matrices = [one for name, one in tensors.items() if one.values.ndim > 1 and name not in FLOATS]
    small = sum(one.type == "f32" for one in matrices)
    if small and kind != "f32":
        yield f"{small} tensors are stored in f32: some rows have only values too small for {kind}"
    wider = [one.values.ndim for one in tensors.values() if one.type not in ("f32", kind)]
    flat = wider.count(2)
    if flat:
        yield f"{flat} tensors are stored in f16: their rows do not fill whole blocks of {kind}"
    if len(wider) > flat:
        yield (
            f"{len(wider) - flat} tensors with one matrix per head (attn_k_b, attn_v_b) are "
            f"stored in f16 instead of {kind}, with higher precision"
        )
