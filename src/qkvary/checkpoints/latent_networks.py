"""Networks whose key and value are made from one normalised tensor, as DeepSeek V3 attention.

The key and the value of every head are each the tensor times a matrix. If the tensor holds the KV
heads, these matrices select the block of a head. All heads share one rotary key.

The architecture always normalises the tensor. A tensor that must not be normalised is scaled down
until the norm divides it by the epsilon alone; the gain of the norm scales it up again: ``c s /
sqrt(mean (c s)^2 + eps) * sqrt(eps) / s`` is c, to a relative error of STILL / 2.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from qkvary.arch.attention import KV_NORM_EPS, AttentionConfig
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.sharing import Source
from qkvary.checkpoints.stock_parts import Weights
from qkvary.nn.attention import Attention
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.projections import read_matrix
from qkvary.nn.role_maps import make_role_maps

TRAIN = "train the form Q-K=V@decoupled-16@kv-norm, such as qkvary train lm-10m-portable"
"""Advice for networks that latent attention cannot express."""
STILL = 2.0**-26
"""The largest mean square of a tensor that is scaled down, relative to the epsilon of its norm."""


def find_latent_obstacles(config: LanguageModelConfig) -> Iterator[str]:
    """Yield the features that latent attention does not have."""
    for layer in config.layers:
        variant = layer.variant
        if variant.decoupled is None:
            yield f"positions that are not decoupled; {TRAIN}"
        if variant.sharing.key != variant.sharing.value:
            yield f"keys and values that are not one tensor; {TRAIN}"
        if layer.bias or layer.out_bias:
            yield "biases in attention; choices: bias and out_bias false"
        if layer.position.scaling is not None:
            yield "scaled rotary positions"
    if len({layer.position.rotary_base for layer in config.layers}) > 1:
        yield "layers with different rotary bases"
    if len({(latent_width(one), one.variant.decoupled or 0) for one in config.layers}) > 1:
        yield "layers with tensors of different widths"
    yield from find_block_obstacles(config, "decoupled")


def find_block_obstacles(config: LanguageModelConfig, positions: str) -> Iterator[str]:
    """Yield the features besides attention that Llama and DeepSeek do not have."""
    block = config.block
    if config.positions != "none":
        yield f"{config.positions} positions besides {positions} ones; choices: none"
    if block.norm != "rmsnorm":
        yield f"{block.norm}; choices: rmsnorm"
    if block.activation != "swiglu":
        yield f"{block.activation}; choices: swiglu"


def latent_width(layer: AttentionConfig) -> int:
    """Return the channels of the tensor from which key and value are made."""
    return layer.width(layer.variant.sharing.key)


def make_latent_weights(network: LanguageModel) -> Weights:
    """Return the matrices of query, key and value under the names of the table."""
    weights: Weights = {}
    for index, part in enumerate(network.stack.blocks):
        at, attention = f"stack.blocks.{index}.attention", part.attention
        shared = make_role_maps(attention).key.weight.flatten(0, 1)
        rope = _interleave(_rope(attention, "k_rope")).flatten(0, 1)
        up = torch.cat(_up_projections(attention), dim=1)
        if attention.kv_norm is None:
            scale = still_scale(shared, part.attention_norm.get_parameter("weight"))
            shared = shared * scale
            gain = torch.full((len(shared),), KV_NORM_EPS**0.5 / scale, dtype=torch.float64)
            weights[f"{at}.kv_norm.weight"] = gain
        config = attention.config
        content = make_role_maps(attention).query.copy_heads(config.num_heads).weight
        # In each head, content rows come before rotary rows. The architecture divides scores by
        # the root of the number of both; the rest of the scale is folded into the rows.
        query = torch.cat((content, _interleave(_rope(attention, "q_rope"))), dim=1)
        rest = config.content_scale * config.compared_channels**0.5
        weights[f"{at}.latent_query.weight"] = (query * rest).flatten(0, 1)
        weights[f"{at}.latent_down.weight"] = torch.cat((shared, rope))
        weights[f"{at}.latent_up.weight"] = up.flatten(0, 1)
    return weights


def still_scale(shared: Tensor, norm: Tensor, epsilon: float = KV_NORM_EPS) -> float:
    """Return the largest power-of-two scale at which a norm leaves a tensor unchanged.

    ``norm`` is the gain of the norm before the tensor; without it, that norm's output has a
    mean square of 1.
    """
    gained = shared.double() * norm.detach().cpu().double()
    largest = float(torch.linalg.matrix_norm(gained, 2)) ** 2 * shared.shape[1] / len(shared)
    # Limited to exponents of single precision.
    return 2.0 ** max(-60, math.floor(math.log2((STILL * epsilon / max(largest, 1e-30)) ** 0.5)))


def _rope(attention: Attention, source: Source) -> Tensor:
    weight, _ = read_matrix(attention.projections[source])
    return weight.unflatten(0, (attention.config.heads(source), -1))


def _interleave(heads: Tensor) -> Tensor:
    """Reorder the rows of each head from two halves to neighbouring pairs."""
    return heads.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def _up_projections(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return the matrices of key and value: [heads, head_dim, width of the shared tensor]."""
    config = attention.config
    latent = attention.latent
    if latent is None:
        both = make_selectors(config.num_heads, config.num_kv_heads, config.size_per_head)
        return both, both
    copies = config.num_heads // config.num_kv_heads
    key, value = (
        read_matrix(part)[0].unflatten(0, (config.num_kv_heads, -1))
        for part in (latent.key, latent.value)
    )
    return key.repeat_interleave(copies, dim=0), value.repeat_interleave(copies, dim=0)


def make_selectors(heads: int, kv_heads: int, head_dim: int) -> Tensor:
    """Return a matrix for each head that selects its KV block: [heads, head_dim, width]."""
    blocks = torch.eye(kv_heads * head_dim, dtype=torch.float64).unflatten(0, (kv_heads, head_dim))
    return blocks.repeat_interleave(heads // kv_heads, dim=0)
