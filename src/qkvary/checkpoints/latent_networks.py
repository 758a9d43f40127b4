"""Keys and values made of one normalised tensor, as the latent attention of DeepSeek V3.

Key and value of every head are made of the tensor by a matrix each. Where they are one tensor of
KV heads, these matrices pick the block of a head. The rotary part is one key for all heads.
"""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import LanguageModelConfig
from qkvary.arch.sharing import Source
from qkvary.nn.attention import Attention
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.role_maps import make_role_maps
from qkvary.nn.terms import KeyValueNorm

Weights = dict[str, Tensor]
TRAIN = "train the form Q-K=V@decoupled-16@kv-norm, such as qkvary train lm-10m-portable"
"""The advice for a network that latent attention cannot express."""


def find_latent_obstacles(config: LanguageModelConfig) -> Iterator[str]:
    """Yield the features that latent attention does not have."""
    block = config.block
    for layer in config.layers:
        variant = layer.variant
        if variant.decoupled is None:
            yield f"positions that are not decoupled; {TRAIN}"
        if not variant.kv_norm:
            yield f"keys and values that are not one normalised tensor; {TRAIN}"
        if layer.bias or layer.out_bias:
            yield "biases in attention; choices: bias and out_bias false"
    if len({layer.position.rotary_base for layer in config.layers}) > 1:
        yield "layers with different rotary bases"
    if len({_shape_of(layer) for layer in config.layers}) > 1:
        yield "layers with tensors of different widths"
    if config.positions != "none":
        yield f"{config.positions} positions besides decoupled ones; choices: none"
    if block.norm != "rmsnorm":
        yield f"{block.norm}; choices: rmsnorm"
    if block.activation != "swiglu":
        yield f"{block.activation}; choices: swiglu"


def _shape_of(layer: AttentionConfig) -> tuple[int, ...]:
    return latent_width(layer), layer.variant.decoupled or 0


def latent_width(layer: AttentionConfig) -> int:
    """Return the channels of the tensor that key and value are made of."""
    return layer.width(layer.variant.sharing.key)


def make_latent_weights(network: LanguageModel) -> Weights:
    """Return the weights of a network without obstacles, by the names of transformers."""
    weights: Weights = {
        "model.embed_tokens.weight": network.embedding,
        "lm_head.weight": network.output_weight,
        "model.norm.weight": _gain(network.stack.final_norm),
    }
    for index, part in enumerate(network.stack.blocks):
        at, feed = f"model.layers.{index}", part.feed_forward
        attention = part.attention
        shared = make_role_maps(attention).key.weight.flatten(0, 1)
        rope = _interleave(_rope(attention, "k_rope")).flatten(0, 1)
        up = _up_projections(attention)
        norm = next(term for term in attention.terms if isinstance(term, KeyValueNorm))
        weights |= {
            f"{at}.input_layernorm.weight": _gain(part.attention_norm),
            f"{at}.self_attn.q_proj.weight": _make_query(attention),
            f"{at}.self_attn.kv_a_proj_with_mqa.weight": torch.cat((shared, rope)),
            f"{at}.self_attn.kv_a_layernorm.weight": norm.weight,
            f"{at}.self_attn.kv_b_proj.weight": torch.cat(up, dim=1).flatten(0, 1),
            f"{at}.self_attn.o_proj.weight": attention.o_proj.weight,
            f"{at}.post_attention_layernorm.weight": _gain(part.feed_forward_norm),
            f"{at}.mlp.gate_proj.weight": cast("nn.Linear", feed.gate).weight,
            f"{at}.mlp.up_proj.weight": feed.up.weight,
            f"{at}.mlp.down_proj.weight": feed.down.weight,
        }
    return weights


def _gain(norm: nn.Module | None) -> Tensor:
    return cast("nn.RMSNorm", norm).weight


def _make_query(attention: Attention) -> Tensor:
    """Return the rows of the query, those of a head's content before its rotary ones.

    The architecture scales by the square root of both; the rest of the scale is folded in.
    """
    config = attention.config
    content = make_role_maps(attention).query.copy_heads(config.num_heads).weight
    rope = _interleave(_rope(attention, "q_rope"))
    rest = config.content_scale * config.compared_channels**0.5
    return (torch.cat((content, rope), dim=1) * rest).flatten(0, 1)


def _rope(attention: Attention, source: Source) -> Tensor:
    """Return the rows of decoupled positions by head."""
    weight = attention.projections[source].weight.detach().cpu().double()
    return weight.unflatten(0, (attention.config.heads(source), -1))


def _interleave(heads: Tensor) -> Tensor:
    """Reorder the rows of each head from two halves to neighbouring pairs."""
    return heads.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def _up_projections(attention: Attention) -> tuple[Tensor, Tensor]:
    """Return the matrices of key and value: [heads, head_dim, width of the shared tensor]."""
    config = attention.config
    latent = attention.key_value.latent
    if latent is None:
        both = make_selectors(config.num_heads, config.num_kv_heads, config.size_per_head)
        return both, both
    copies = config.num_heads // config.num_kv_heads
    key, value = (
        part.weight.detach().cpu().double().unflatten(0, (config.num_kv_heads, -1))
        for part in (latent.key, latent.value)
    )
    return key.repeat_interleave(copies, dim=0), value.repeat_interleave(copies, dim=0)


def make_selectors(heads: int, kv_heads: int, head_dim: int) -> Tensor:
    """Return the matrix of each head that picks the block of its KV head.

    Args:
        heads: Query heads.
        kv_heads: KV heads.
        head_dim: Channels of a block.

    Returns:
        Zeros and ones: [heads, head_dim, kv_heads * head_dim].
    """
    blocks = torch.eye(kv_heads * head_dim, dtype=torch.float64).unflatten(0, (kv_heads, head_dim))
    return blocks.repeat_interleave(heads // kv_heads, dim=0)
