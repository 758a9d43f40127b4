"""Our language models as the tensors and sizes of an architecture of llama.cpp.

What llama.cpp cannot compute is refused with the reason. A partial rotation becomes a full one
whose other frequencies are divided to zero (``rope_freqs``), as files of other models have it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor as TorchTensor

from qkvary.arch.attention import KV_NORM_EPS
from qkvary.arch.families.written import write_language_model
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.gguf.families import FamilyFile, convert_family
from qkvary.checkpoints.gguf.files import Tensor
from qkvary.checkpoints.gguf.headers import BLOCKS, GELU, TensorType
from qkvary.checkpoints.gguf.rotation import pair_order, rotary_divisors
from qkvary.checkpoints.latent_networks import latent_width
from qkvary.checkpoints.stock_names import GGUF_NAMES, TITLES, Row, StockArchitecture, list_tensors
from qkvary.checkpoints.stock_networks import (
    choose_architecture,
    count_kv_heads,
    find_obstacle,
    stock_weights,
)
from qkvary.checkpoints.stock_parts import is_turned, order_channels
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError

GELU_NOTES = {
    "gelu": (
        "llama.cpp computes GELU by its tanh form and a table of half precision: its activations "
        "differ from this network's by up to 0.0005 and 0.05 %"
    ),
    "gelu-tanh": (
        "llama.cpp computes GELU by a table of half precision: its activations differ from this "
        "network's by up to 0.05 %"
    ),
}
LARGEST: Mapping[TensorType, int] = {"f16": 65_504, "q8_0": 127 * 65_504}
"""The largest value that a type can hold; the scales of q8_0 are f16."""
SMALLEST = 2.0**-14
"""The smallest value that the types in ``LARGEST`` hold with full precision."""
FLOATS = ("position_embd.weight", "rope_freqs.weight")
"""Matrices that every file stores in f32, like norms and biases."""
_FILE_TYPES: Mapping[TensorType, int] = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
"""The value of ``general.file_type`` for each type."""


class GgufNetwork(NamedTuple):
    """A network for llama.cpp."""

    architecture: str
    """llama.cpp's name of the architecture."""
    metadata: dict[str, Any]
    """The metadata of the network, by key."""
    tensors: dict[str, Tensor]
    notes: tuple[str, ...]
    """What the export loses or changes, one sentence each."""


def convert_network(network: LanguageModel, kind: TensorType) -> GgufNetwork:
    """Express a network as the architecture of llama.cpp that fits.

    Args:
        network: A language model.
        kind: The type of its matrices. Rows that are not whole blocks of q8_0 are stored in f16.

    Raises:
        UsageError: if llama.cpp cannot compute it, with the reason; or if a weight is too large.
    """
    config = network.config
    to = choose_architecture(config)
    obstacle = find_obstacle(config, to, _OBSTACLES[to])
    if obstacle is not None:
        own = convert_family(network)
        if own is not None:
            return _store_family(config, own, kind)
        written = write_language_model(config)
        if written is not None:
            obstacle += f", and no {written.family} as llama.cpp computes it"
        raise UsageError(
            f"expected a network that llama.cpp's {TITLES[to]} can express, got {obstacle}"
        )
    weights = stock_weights(network, to)
    if config.tied_head:
        del weights["lm_head.weight"]
    # llama.cpp has one epsilon for all norms. Where this norm makes a tensor large again
    # (latent_networks), its gain is divided by the root of epsilon, and is adjusted here.
    for name in weights:
        if name.endswith("kv_a_layernorm.weight"):
            weights[name] = weights[name] * (config.block.norm_eps / KV_NORM_EPS) ** 0.5
    tensors = dict(_convert(config, to, weights, kind))
    metadata = {
        **_name_file(GGUF_NAMES[to], kind),
        **({GELU: "erf"} if config.block.activation == "gelu" else {}),
        **{f"{GGUF_NAMES[to]}.{name}": value for name, value in _SIZES[to](config).items()},
    }
    notes = () if to != "gpt2" else (GELU_NOTES[config.block.activation],)
    return GgufNetwork(GGUF_NAMES[to], metadata, tensors, (*notes, *_find_notes(tensors, kind)))


def _store_family(config: LanguageModelConfig, own: FamilyFile, kind: TensorType) -> GgufNetwork:
    tensors = {name: _store(name, values, kind, name) for name, values in own.tensors.items()}
    metadata = {**own.metadata, **_name_file(own.architecture, kind)}
    notes = [GELU_NOTES[one] for one in (config.block.activation,) if one in GELU_NOTES]
    return GgufNetwork(own.architecture, metadata, tensors, (*notes, *_find_notes(tensors, kind)))


def _name_file(architecture: str, kind: TensorType) -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        "general.file_type": _FILE_TYPES[kind],
        "general.quantization_version": 2,
    }


def _obstacles_to_gpt2(config: LanguageModelConfig) -> Iterator[str]:
    if config.block.activation == "relu":
        yield "relu; choices: gelu-tanh, gelu"


def _obstacles_to_llama(config: LanguageModelConfig) -> Iterator[str]:
    for layer in config.layers:
        if layer.value_rope != "none":
            yield (
                f"values that are rotated keys ({layer.value_rope}), which it does not rotate "
                "back; train a form that it has: Q-K=V@decoupled-16@kv-norm (such as qkvary train "
                "lm-10m-portable), GQA-g or MQA"
            )
    scaling = config.layers[0].position.scaling
    if scaling is not None and (scaling.depends_on_length or scaling.attention_factor != 1.0):
        yield f"rotary positions of the form {scaling.form} with a factor or a length of their own"
    size = config.layers[0].size_per_head
    if size % 2:
        yield f"heads of {size} channels; choices: an even number"
    if len({layer.position.rotary_dim(layer.size_per_head) for layer in config.layers}) > 1:
        yield "layers that rotate different numbers of channels"


def _obstacles_to_deepseek(config: LanguageModelConfig) -> Iterator[str]:
    normalises = any(layer.variant.kv_norm for layer in config.layers)
    if normalises and config.block.norm_eps != KV_NORM_EPS:
        yield f"norms with the epsilon {config.block.norm_eps}; choices: norm_eps {KV_NORM_EPS}"


def _convert(
    config: LanguageModelConfig,
    to: StockArchitecture,
    weights: Mapping[str, TorchTensor],
    kind: TensorType,
) -> Iterator[tuple[str, Tensor]]:
    if to == "llama":
        layer = config.layers[0]
        size, position = layer.size_per_head, layer.position
        rotated = position.rotary_dim(size)
        divisors = rotary_divisors(size, rotated, position.rotary_base)
        if position.scaling is not None:
            scaled = position.scaling.divisors(rotated, position.rotary_base, 0)
            divisors[: len(scaled)] = map(operator.mul, divisors, scaled)
        if any(one != 1 for one in divisors):
            yield "rope_freqs.weight", Tensor(np.array(divisors, dtype=np.float32), "f32")
    for row in list_tensors(to, config.num_layers):
        if row.theirs in weights and _is_used(config, row.gguf):
            for name, values in _split(config, row, weights[row.theirs].float()):
                yield name, _store(name, values, kind, row.theirs)


def _store(name: str, values: TorchTensor, kind: TensorType, said: str) -> Tensor:
    stored = _choose_type(name, values, kind)
    limit = LARGEST.get(stored, math.inf)
    if float(values.abs().max()) > limit:
        raise UsageError(f"{said} has weights above {limit:,}, the end of {stored}")
    return Tensor(values.contiguous().numpy(), stored)


def _split(
    config: LanguageModelConfig, row: Row, values: TorchTensor
) -> Iterator[tuple[str, TorchTensor]]:
    """Yield a tensor; for the latent, the separate key and value tensors that llama.cpp expects."""
    if not row.gguf.endswith("attn_kv_b.weight"):
        yield row.gguf, _reorder(config, row, values)
        return
    layer = config.layers[0]
    key, value = values.unflatten(0, (layer.num_heads, 2, -1)).unbind(dim=1)
    yield row.gguf.replace("attn_kv_b", "attn_k_b"), key.mT
    yield row.gguf.replace("attn_kv_b", "attn_v_b"), value


def _is_used(config: LanguageModelConfig, name: str) -> bool:
    """Return whether a tensor holds more than the zeros that transformers requires."""
    if not name.endswith(".bias") or "attn_" not in name or choose_architecture(config) != "llama":
        return True
    is_output = "attn_output" in name
    return any(layer.out_bias if is_output else layer.bias for layer in config.layers)


def _reorder(config: LanguageModelConfig, row: Row, values: TorchTensor) -> TorchTensor:
    if row.change == "transposed" and values.ndim == 2:
        return values.T
    if not is_turned(row.ours):
        return values
    layer = config.layers[0]
    size = layer.size_per_head
    return order_channels(values, size, pair_order(size, layer.position.rotary_dim(size)))


def _choose_type(name: str, values: TorchTensor, kind: TensorType) -> TensorType:
    shape = values.shape
    if len(shape) < 2 or name in FLOATS:
        return "f32"
    rows = values.abs().amax(dim=-1)
    if kind in LARGEST and bool(((rows > 0) & (rows < SMALLEST)).any()):
        return "f32"
    # Selectors (zeros and ones), or products of small heads, which need more bits.
    if len(shape) > 2 and kind != "f32":
        return "f16"
    return "f16" if shape[-1] % BLOCKS[kind].size else kind


def _gpt2_sizes(config: LanguageModelConfig) -> dict[str, Any]:
    return {**_common_sizes(config), "attention.layer_norm_epsilon": config.block.norm_eps}


def _llama_sizes(config: LanguageModelConfig) -> dict[str, Any]:
    layer = config.layers[0]
    return {
        **_common_sizes(config),
        "attention.head_count_kv": count_kv_heads(config),
        "attention.key_length": layer.size_per_head,
        "attention.value_length": layer.size_per_head,
        "attention.layer_norm_rms_epsilon": config.block.norm_eps,
        "rope.dimension_count": layer.size_per_head,
        "rope.freq_base": float(layer.position.rotary_base),
    }


def _deepseek_sizes(config: LanguageModelConfig) -> dict[str, Any]:
    layer = config.layers[0]
    width, size, rope = latent_width(layer), layer.size_per_head, layer.variant.decoupled or 0
    return {
        **_common_sizes(config),
        # The cache holds one key with all channels; its first channels are the value.
        "attention.head_count_kv": 1,
        "attention.key_length": width + rope,
        "attention.value_length": width,
        "attention.key_length_mla": size + rope,
        "attention.value_length_mla": size,
        "attention.kv_lora_rank": width,
        # The query has one full-rank matrix.
        "attention.q_lora_rank": 0,
        "attention.layer_norm_rms_epsilon": config.block.norm_eps,
        "rope.dimension_count": rope,
        "rope.freq_base": float(layer.position.rotary_base),
        "leading_dense_block_count": config.num_layers,
        "expert_count": 0,
        "expert_used_count": 0,
        "expert_shared_count": 1,
        "expert_feed_forward_length": config.block.d_ff,
        "expert_weights_scale": 1.0,
    }


def _common_sizes(config: LanguageModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocabulary,
        "context_length": config.max_tokens,
        "embedding_length": config.d_model,
        "block_count": config.num_layers,
        "feed_forward_length": config.block.d_ff,
        "attention.head_count": config.layers[0].num_heads,
    }


def _find_notes(tensors: Mapping[str, Tensor], kind: TensorType) -> Iterator[str]:
    small = [name for name, one in tensors.items() if one.type == "f32" and _is_matrix(name, one)]
    if small and kind != "f32":
        yield f"{len(small)} tensors are stored in f32: some of their rows are too small for {kind}"
    wider = [one.values.ndim for one in tensors.values() if one.type not in ("f32", kind)]
    flat = wider.count(2)
    if flat:
        yield f"{flat} tensors are stored in f16: their rows are not whole blocks of {kind}"
    if len(wider) > flat:
        yield (
            f"{len(wider) - flat} tensors with a matrix for each head (attn_k_b, attn_v_b) are "
            f"stored in f16, which is more precise than {kind}"
        )


def _is_matrix(name: str, tensor: Tensor) -> bool:
    return tensor.values.ndim > 1 and name not in FLOATS


_OBSTACLES: Mapping[StockArchitecture, Callable[[LanguageModelConfig], Iterator[str]]] = {
    "gpt2": _obstacles_to_gpt2,
    "llama": _obstacles_to_llama,
    "deepseek": _obstacles_to_deepseek,
}
_SIZES: Mapping[StockArchitecture, Callable[[LanguageModelConfig], dict[str, Any]]] = {
    "gpt2": _gpt2_sizes,
    "llama": _llama_sizes,
    "deepseek": _deepseek_sizes,
}
