"""Converts our language models to weights of stock architectures: GPT-2, Llama, DeepSeek V3.

Shared weights are copied, because a stock architecture has separate projections. A query, key or
value without a projection gets an identity matrix, low-rank products and maps are multiplied out,
and scales are folded into the query. The families other than these three use the weights of a
network unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor

from qkvary.arch.canonical import not_counted
from qkvary.arch.networks import LanguageModelConfig
from qkvary.checkpoints.latent_networks import (
    TRAIN,
    find_block_obstacles,
    find_latent_obstacles,
    make_latent_weights,
)
from qkvary.checkpoints.stock_names import StockArchitecture, list_tensors
from qkvary.checkpoints.stock_parts import Weights
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.costs.parameters import network_parameters
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import sinusoid
from qkvary.nn.role_maps import LinearMap, make_role_maps

_KNOWN_TERMS: Mapping[StockArchitecture, tuple[str, ...]] = {
    "gpt2": ("rotary", "temperature"),
    "llama": ("rotary", "temperature"),
    "deepseek": ("decoupled", "kv_norm", "latent", "temperature"),
}
"""Score terms that a stock architecture has, or that can be folded into its weights."""
_TERMS = {
    "plus": "the bias that the position term '+' adds to the scores of every key position",
    "key_bias": "a bias that is added to the scores of every key position",
    "diagonal": "scores whose diagonal is normalised",
    "unscaled-diagonal": "scores whose diagonal is normalised",
    "kv_norm": "a norm of the shared key-value tensor",
    "latent": "keys and values that are made of one latent",
    "decay": "attention weights that decay with the distance",
    "qk-norm": "norms of query and key",
    "qk-norm-wide": "norms of query and key",
    "soft_cap": "a soft cap on the scores",
}


def find_obstacle(
    config: LanguageModelConfig, to: StockArchitecture, more: Iterable[str] = ()
) -> str | None:
    """Return the first reason why an architecture cannot express a network, or ``None``."""
    found = (_obstacles(config, to), more, _RULES[to](config))
    return next(chain.from_iterable(found), None)


def find_losses(
    config: LanguageModelConfig, to: StockArchitecture, parameters: int
) -> Iterator[str]:
    """Yield sentences about what an architecture with ``parameters`` weights stores needlessly."""
    layer = config.layers[0]
    kv_heads = count_kv_heads(config) if to == "llama" else layer.num_heads
    stock = 2 * kv_heads * layer.size_per_head * config.num_layers
    own = (cache_bytes_per_token(config, "float32") or 0) // 4
    # The cache of latent attention holds the same tensors as ours.
    if to != "deepseek" and stock > own:
        yield (
            f"the exported cache holds {stock:,} numbers per token (keys and values of {kv_heads} "
            f"heads per layer), but only {own:,} are needed"
        )
    needed = network_parameters(config).total
    if parameters > needed:
        more = "matrices that pick heads"
        if to != "deepseek":
            more = "copies of weights, biases or position tables that the network does without"
        yield f"the export has {parameters:,} parameters instead of {needed:,}: it stores {more}"


def plain_weights(
    network: LanguageModel, to: StockArchitecture, *, bias: bool, out_bias: bool
) -> Weights:
    """Return the weights of the stock architecture ``to``, by our names and in the network's dtype.

    Shared projections are copied. ``bias`` and ``out_bias`` say whether Llama's attention has these
    biases; GPT-2 has a bias everywhere.
    """
    if to == "deepseek":
        made, fills = make_latent_weights(network), ()
    elif to == "llama":
        made = dict(_list_roles(network, count_kv_heads(network.config), bias=bias))
        fills = ("o_proj.bias",) if out_bias else ()
    else:
        made = dict(_list_roles(network, network.config.layers[0].num_heads, bias=True))
        made["position_embedding"] = _tabulate_positions(network)
        fills = ("bias",)
    for row in list_tensors(to, network.config.num_layers):
        for name in row.ours.split(","):
            value = made.get(name, find_parameter(network, name))
            weight = find_parameter(network, name.removesuffix("bias") + "weight")
            if value is None and name.endswith(fills) and weight is not None:
                value = weight.new_zeros(weight.shape[0])
            if value is not None:
                made[name] = value.detach().to("cpu", network.embedding.dtype)
    return made


def choose_architecture(config: LanguageModelConfig) -> StockArchitecture:
    """Return the architecture that has the network's kind of positions."""
    if any(layer.variant.decoupled is not None for layer in config.layers):
        return "deepseek"
    return "llama" if rotates(config) else "gpt2"


def rotates(config: LanguageModelConfig) -> bool:
    """Return whether any layer has rotary positions."""
    return any(layer.variant.positions == "rotary" for layer in config.layers)


def _obstacles(config: LanguageModelConfig, to: StockArchitecture) -> Iterator[str]:
    yield from (f"{part}, a part of your own" for part in not_counted(config))
    wanted = (
        f" instead of decoupled ones; {TRAIN}" if to == "deepseek" else "; choices: none, rotary"
    )
    for term in chain.from_iterable(layer.variant.terms for layer in config.layers):
        if term.name not in _KNOWN_TERMS[to]:
            yield _TERMS.get(term.name, f"{term.name} positions{wanted}")
    for layer in config.layers:
        variant = layer.variant
        if variant.query_form == "residual-gelu":
            yield "a nonlinear query; choices: plain, residual, map"
        if variant.window is not None and variant.window < config.max_tokens:
            yield f"a window of {variant.window} tokens"
        if variant.stride is not None:
            yield f"a stride of {variant.stride} tokens"
        if variant.core_name != "softmax":
            yield f"the core {variant.core_name}; choices: softmax"
    if len({(layer.num_heads, layer.size_per_head) for layer in config.layers}) > 1:
        yield "layers that differ in the number or width of heads"
    if config.block.norm_placement != "pre":
        yield f"the norm placement {config.block.norm_placement}; choices: pre"
    if config.block.skips != "both":
        yield f"the skips {config.block.skips}; choices: both"
    outside = {
        "parallel sublayers": config.block.parallel,
        "blocks that share their weights": config.shared_blocks,
        "scaled embeddings": config.scale_embedding,
        "a bias on the logits": config.head_bias,
        "a soft cap on the logits": config.logit_cap is not None,
    }
    yield from (name for name, is_there in outside.items() if is_there)


def _obstacles_to_gpt2(config: LanguageModelConfig) -> Iterator[str]:
    layer, block = config.layers[0], config.block
    if rotates(config):
        yield "rotary positions; choices: learned, sinusoidal, none"
    if block.norm != "layernorm":
        yield f"{block.norm}; choices: layernorm"
    if block.is_gated:
        yield f"{block.activation}; choices: gelu, gelu-tanh, relu"
    if layer.num_heads * layer.size_per_head != layer.d_model:
        yield (
            f"{layer.num_heads} heads of {layer.size_per_head} channels, which do not add up to "
            f"the width of {layer.d_model}"
        )


def _obstacles_to_llama(config: LanguageModelConfig) -> Iterator[str]:
    if not rotates(config):
        yield "no rotary positions; choices: rotary"
    for layer in config.layers:
        if layer.variant.positions != "rotary":
            yield "rotary positions in some layers only"
        if layer.value_rope != "none":
            yield f"values that are rotated keys ({layer.value_rope}); set value_rope to none"
    if len({layer.position.rotary_base for layer in config.layers}) > 1:
        yield "layers with different rotary bases"
    scalings = {layer.position.scaling for layer in config.layers}
    if len(scalings) > 1:
        yield "layers with different rotary scalings"
    if any(one is not None and one.query_growth for one in scalings):
        yield "queries that are scaled by position"
    yield from find_block_obstacles(config, "rotary")


def count_kv_heads(config: LanguageModelConfig) -> int:
    """Return the least common multiple of the layers' numbers of KV heads."""
    return math.lcm(
        *(
            layer.heads(layer.variant.sharing.roles[role])
            for layer in config.layers
            for role in ("key", "value")
        )
    )


def has_bias(config: LanguageModelConfig) -> bool:
    """Return whether any attention layer has a bias."""
    return any(layer.bias or layer.out_bias for layer in config.layers)


def find_parameter(network: LanguageModel, name: str) -> Tensor | None:
    """Return the parameter of this name, or None if the network has no such parameter."""
    if name == "head_weight":
        return network.output_weight
    module, _, parameter = name.rpartition(".")
    try:
        return getattr(network.get_submodule(module), parameter, None)
    except AttributeError:
        return None


def _list_roles(
    network: LanguageModel, kv_heads: int, *, bias: bool
) -> Iterator[tuple[str, Tensor]]:
    for index, part in enumerate(network.stack.blocks):
        config = part.attention.config
        query, key, value = make_role_maps(part.attention)
        # The stock architecture scales scores by 1/sqrt(head_dim).
        rest = config.content_scale * math.sqrt(config.size_per_head)
        query = LinearMap(query.weight * rest, query.bias * rest)
        roles = {"q": query, "k": key.copy_heads(kv_heads), "v": value.copy_heads(kv_heads)}
        for name, role in roles.items():
            at = f"stack.blocks.{index}.attention.{name}_proj"
            yield f"{at}.weight", role.weight.flatten(0, 1)
            if bias:
                yield f"{at}.bias", role.bias.flatten()


def _tabulate_positions(network: LanguageModel) -> Tensor:
    config = network.config
    if network.position_embedding is not None:
        return network.position_embedding
    if config.positions == "none":
        return torch.zeros(config.max_tokens, config.d_model)
    index = torch.arange(config.max_tokens)[None]
    return sinusoid(index, config.d_model, torch.float64, config.positions)[0]


_RULES: Mapping[StockArchitecture, Callable[[LanguageModelConfig], Iterator[str]]] = {
    "gpt2": _obstacles_to_gpt2,
    "llama": _obstacles_to_llama,
    "deepseek": find_latent_obstacles,
}
