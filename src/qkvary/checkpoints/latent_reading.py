"""The latent attention of DeepSeek V3 as one of our networks.

If the matrices of key and value select blocks of the tensor, the blocks are KV heads; otherwise the
tensor is a latent. Weights have the names that transformers uses.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from qkvary.arch.attention import KV_NORM_EPS, AttentionConfig, PositionConfig
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.sharing import share
from qkvary.arch.variants import Variant
from qkvary.checkpoints.latent_networks import STILL, make_selectors, still_scale
from qkvary.checkpoints.stock_names import list_tensors
from qkvary.storage.errors import DamagedError, UsageError


class ReadNetwork(NamedTuple):
    """A network of another program, as one of ours."""

    config: LanguageModelConfig
    weights: dict[str, Tensor]
    """The weights, by the names of this package."""


class LatentSizes(NamedTuple):
    """The sizes of a network, whose layers are all dense."""

    d_model: int
    d_ff: int
    layers: int
    heads: int
    head_dim: int
    """Channels per head of keys and values, without the rotary channels."""
    rope: int
    """Number of rotary channels."""
    width: int
    """Channels of the shared tensor that keys and values are made from."""
    max_tokens: int
    rotary_base: float
    norm_eps: float
    kv_norm_eps: float = KV_NORM_EPS
    """Epsilon of the shared tensor's norm."""


class _Form(NamedTuple):
    """The map from the shared tensor to the keys and values of heads."""

    kv_heads: int
    picks_blocks: bool
    """Whether keys and values are blocks of the shared tensor; otherwise they are products of
    it."""


def read_latent_network(
    sizes: LatentSizes, weights: Mapping[str, Tensor], where: str
) -> ReadNetwork:
    """Return the configuration and the weights of a network.

    Args:
        sizes: Its sizes.
        weights: All weights by the names of transformers; a tied head is left out.
        where: The name of the file in messages.

    Raises:
        UsageError: for a weight that this program does not compute.
        DamagedError: for one that is missing or does not have these sizes.
    """
    _check_shapes(sizes, weights, where)
    up = [weights[_name(layer, "kv_b_proj")] for layer in range(sizes.layers)]
    form = _read_form(sizes, up)
    found = dict[str, Tensor]()
    for row in list_tensors("deepseek", sizes.layers):
        if row.ours and row.theirs in weights:
            found[row.ours] = weights[row.theirs]
    for layer in range(sizes.layers):
        found |= _restore_attention(sizes, form, layer, weights)
    still = [_find_still_scale(sizes, layer, weights) for layer in range(sizes.layers)]
    if None in still and sizes.kv_norm_eps != KV_NORM_EPS:
        raise UsageError(
            f"{where} has a norm of keys and values with the epsilon {sizes.kv_norm_eps}, expected "
            f"{KV_NORM_EPS}"
        )
    is_still = None not in still
    for layer, scale in enumerate(still):
        at = f"stack.blocks.{layer}.attention"
        if is_still and scale is not None:
            found[f"{at}.k_proj.weight"] = found[f"{at}.k_proj.weight"] / scale
            del found[f"{at}.kv_norm.weight"]
    tied = "lm_head.weight" not in weights
    vocabulary = len(weights["model.embed_tokens.weight"])
    config = _make_config(sizes, form, vocabulary, tied=tied, kv_norm=not is_still)
    return ReadNetwork(config, found)


def _find_still_scale(
    sizes: LatentSizes, layer: int, weights: Mapping[str, Tensor]
) -> float | None:
    """Return the scale of a tensor that its norm leaves unchanged, None if the norm changes it."""
    gain = weights.get(_name(layer, "kv_a_layernorm"))
    norm = weights.get(f"model.layers.{layer}.input_layernorm.weight")
    shared = weights[_name(layer, "kv_a_proj_with_mqa")][: sizes.width]
    if gain is None or norm is None or norm.shape != shared.shape[1:]:
        return None
    first = float(gain.flatten()[0])
    if (
        first <= 0
        or not torch.isfinite(shared).all()
        or not torch.equal(gain, gain[:1].expand_as(gain))
    ):
        return None
    if still_scale(shared, norm, sizes.kv_norm_eps) < 1:
        return None
    exponent = math.log2(sizes.kv_norm_eps**0.5 / first)
    return 2.0 ** round(exponent) if abs(exponent - round(exponent)) < STILL**0.5 else None


def _name(layer: int, part: str) -> str:
    return f"model.layers.{layer}.self_attn.{part}.weight"


def _check_shapes(sizes: LatentSizes, weights: Mapping[str, Tensor], where: str) -> None:
    """Check the shapes of what is split here; the rest is checked against the built network."""
    size, heads = sizes.head_dim, sizes.heads
    expected = {
        "q_proj": (heads * (size + sizes.rope), sizes.d_model),
        "kv_a_proj_with_mqa": (sizes.width + sizes.rope, sizes.d_model),
        "kv_b_proj": (2 * heads * size, sizes.width),
    }
    if sizes.rope % 2:
        raise DamagedError(f"{where} has {sizes.rope} rotary channels, expected an even number")
    if "model.embed_tokens.weight" not in weights:
        raise DamagedError(f"{where} has no embedding")
    for layer in range(sizes.layers):
        for part, shape in expected.items():
            found = weights.get(_name(layer, part))
            if found is None:
                raise DamagedError(f"{where} has no {part} in layer {layer}")
            if tuple(found.shape) != shape:
                raise DamagedError(
                    f"{where} has {part} of {list(found.shape)} in layer {layer}, expected "
                    f"{list(shape)}"
                )
    known = {row.theirs for row in list_tensors("deepseek", sizes.layers)}
    unknown = min(weights.keys() - known, default=None)
    if unknown is not None:
        raise UsageError(f"{where} has {unknown[:80]}, which this program does not compute")


def _read_form(sizes: LatentSizes, up: list[Tensor]) -> _Form:
    heads, size = sizes.heads, sizes.head_dim
    kv_heads = sizes.width // size
    if kv_heads and sizes.width % size == 0 and heads % kv_heads == 0:
        wanted = make_selectors(heads, kv_heads, size).to(up[0].dtype)
        wanted = torch.cat((wanted, wanted), dim=1).flatten(0, 1)
        if all(torch.equal(one, wanted) for one in up):
            return _Form(kv_heads, picks_blocks=True)
    for count in (count for count in range(1, heads + 1) if heads % count == 0):
        # [groups, heads of a group, rows of a head, width]
        parts = [one.unflatten(0, (count, heads // count, -1)) for one in up]
        if all(torch.equal(one, one[:, :1].expand_as(one)) for one in parts):
            return _Form(count, picks_blocks=False)
    return _Form(heads, picks_blocks=False)


def _restore_attention(
    sizes: LatentSizes, form: _Form, layer: int, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the attention weights of a layer under our names."""
    query = weights[_name(layer, "q_proj")].unflatten(0, (sizes.heads, -1))
    content, query_rope = query.split((sizes.head_dim, sizes.rope), dim=1)
    shared, rope = weights[_name(layer, "kv_a_proj_with_mqa")].split((sizes.width, sizes.rope))
    found = {
        "q_proj": content.flatten(0, 1),
        "q_rope_proj": _split_halves(query_rope).flatten(0, 1),
        "k_proj": shared,
        "k_rope_proj": _split_halves(rope[None])[0],
    }
    if not form.picks_blocks:
        up = weights[_name(layer, "kv_b_proj")].unflatten(0, (sizes.heads, 2, sizes.head_dim))
        own = up[:: sizes.heads // form.kv_heads]
        found |= {"latent.key": own[:, 0].flatten(0, 1), "latent.value": own[:, 1].flatten(0, 1)}
    at = f"stack.blocks.{layer}.attention"
    return {f"{at}.{name}.weight": value.contiguous() for name, value in found.items()}


def _split_halves(heads: Tensor) -> Tensor:
    """Reorder the rows of each head from neighbouring pairs to two halves."""
    return heads.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _make_config(
    sizes: LatentSizes, form: _Form, vocabulary: int, *, tied: bool, kv_norm: bool
) -> LanguageModelConfig:
    variant = Variant(
        sharing=share("q", "k", "k"),
        num_kv_heads=None if form.kv_heads == sizes.heads else form.kv_heads,
        decoupled=sizes.rope,
        latent=None if form.picks_blocks else sizes.width,
        kv_norm=kv_norm,
    )
    attention = AttentionConfig(
        d_model=sizes.d_model,
        num_heads=sizes.heads,
        head_dim=None if sizes.heads * sizes.head_dim == sizes.d_model else sizes.head_dim,
        variant=variant,
        causal=True,
        bias=False,
        out_bias=False,
        position=PositionConfig(rotary_base=sizes.rotary_base),
    )
    return LanguageModelConfig(
        attention=attention,
        block=BlockConfig(
            d_ff=sizes.d_ff,
            activation="swiglu",
            norm="rmsnorm",
            bias=False,
            norm_eps=sizes.norm_eps,
        ),
        num_layers=sizes.layers,
        vocabulary=vocabulary,
        max_tokens=sizes.max_tokens,
        positions="none",
        tied_head=tied,
    )
