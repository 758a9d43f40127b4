"""The latent attention of DeepSeek V3 as one of our networks.

If the matrices of key and value select blocks of the tensor, the blocks are KV heads; otherwise the
tensor is a latent.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from qkvary.arch.attention import KV_NORM_EPS, AttentionConfig, PositionConfig
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.arch.sharing import share
from qkvary.arch.variants import Variant
from qkvary.checkpoints.latent_networks import STILL, make_selectors, still_scale
from qkvary.checkpoints.latent_sizes import LatentSizes, explain
from qkvary.checkpoints.stock_names import list_tensors
from qkvary.checkpoints.stock_parts import Side, Weights
from qkvary.storage.errors import DamagedError, UsageError

_Form = tuple[int, bool]
"""KV heads, and whether keys and values are blocks of the shared tensor or products of it."""


def read_latent_network(
    sizes: LatentSizes, tensors: Mapping[str, Tensor], side: Side, where: str
) -> tuple[LanguageModelConfig, Weights]:
    """Return the configuration and the weights of a network; ``tensors`` lack a tied head."""
    names = {getattr(row, side): row.ours for row in list_tensors("deepseek", sizes.num_layers)}
    unknown = min(tensors.keys() - names.keys(), default=None)
    if unknown is not None:
        raise UsageError(f"{where} has {unknown[:80]}, which this program does not compute")
    found = {names[name]: tensor for name, tensor in tensors.items()}
    _check_shapes(sizes, found, {ours: name for name, ours in names.items()}, where)
    layers = range(sizes.num_layers)
    form = _read_form(sizes, [found[f"{_at(layer)}.latent_up.weight"] for layer in layers])
    still = [_find_still_scale(sizes, layer, found) for layer in layers]
    if None in still and sizes.kv_norm_eps != KV_NORM_EPS:
        raise UsageError(
            f"{where} has a norm of keys and values with the epsilon {sizes.kv_norm_eps}, expected "
            f"{KV_NORM_EPS}"
        )
    is_still = None not in still
    for layer, scale in enumerate(still):
        found |= _restore_attention(sizes, form, layer, found)
        if is_still and scale is not None:
            key = f"{_at(layer)}.k_proj.weight"
            found[key] = found[key] / scale
            del found[f"{_at(layer)}.kv_norm.weight"]
    with explain(where):
        return _make_config(sizes, form, len(found["embedding"]), kv_norm=not is_still), found


def _find_still_scale(
    sizes: LatentSizes, layer: int, weights: Mapping[str, Tensor]
) -> float | None:
    """Return the scale of a tensor that its norm leaves unchanged, None if the norm changes it."""
    gain = weights.get(f"{_at(layer)}.kv_norm.weight")
    norm = weights.get(f"{_at(layer)}_norm.weight")
    shared = weights[f"{_at(layer)}.latent_down.weight"][: sizes.width]
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


def _at(layer: int) -> str:
    return f"stack.blocks.{layer}.attention"


def _check_shapes(
    sizes: LatentSizes, weights: Weights, stored: Mapping[str, str], where: str
) -> None:
    """Check the shapes of what is split here; the rest is checked against the built network."""
    size, heads = sizes.head_dim, sizes.heads
    expected = {
        "latent_query": (heads * (size + sizes.rope), sizes.d_model),
        "latent_down": (sizes.width + sizes.rope, sizes.d_model),
        "latent_up": (2 * heads * size, sizes.width),
    }
    if sizes.rope % 2:
        raise DamagedError(f"{where} has {sizes.rope} rotary channels, expected an even number")
    split = {
        f"{_at(layer)}.{part}.weight": list(shape)
        for layer in range(sizes.num_layers)
        for part, shape in expected.items()
    }
    for name in ("embedding", *split):
        if name not in weights:
            raise DamagedError(f"{where} lacks the tensor {stored[name]}")
        found = list(weights[name].shape)
        if found != split.get(name, found):
            raise DamagedError(f"{where} has {stored[name]} of {found}, expected {split[name]}")


def _read_form(sizes: LatentSizes, up: list[Tensor]) -> _Form:
    heads, size = sizes.heads, sizes.head_dim
    kv_heads = sizes.width // size
    if kv_heads and sizes.width % size == 0 and heads % kv_heads == 0:
        wanted = make_selectors(heads, kv_heads, size).to(up[0].dtype)
        wanted = torch.cat((wanted, wanted), dim=1).flatten(0, 1)
        if all(torch.equal(one, wanted) for one in up):
            return kv_heads, True
    for count in (count for count in range(1, heads + 1) if heads % count == 0):
        # [groups, heads of a group, rows of a head, width]
        parts = [one.unflatten(0, (count, heads // count, -1)) for one in up]
        if all(torch.equal(one, one[:, :1].expand_as(one)) for one in parts):
            return count, False
    return heads, False


def _restore_attention(sizes: LatentSizes, form: _Form, layer: int, weights: Weights) -> Weights:
    """Return the attention weights of a layer, which are taken out of ``weights``."""
    kv_heads, picks_blocks = form
    query, down, up = (
        weights.pop(f"{_at(layer)}.latent_{part}.weight") for part in ("query", "down", "up")
    )
    content, query_rope = query.unflatten(0, (sizes.heads, -1)).split(
        (sizes.head_dim, sizes.rope), dim=1
    )
    shared, rope = down.split((sizes.width, sizes.rope))
    found = {
        "q_proj": content.flatten(0, 1),
        "q_rope_proj": _split_halves(query_rope).flatten(0, 1),
        "k_proj": shared,
        "k_rope_proj": _split_halves(rope[None])[0],
    }
    if not picks_blocks:
        own = up.unflatten(0, (sizes.heads, 2, sizes.head_dim))[:: sizes.heads // kv_heads]
        found |= {"latent.key": own[:, 0].flatten(0, 1), "latent.value": own[:, 1].flatten(0, 1)}
    return {f"{_at(layer)}.{name}.weight": value.contiguous() for name, value in found.items()}


def _split_halves(heads: Tensor) -> Tensor:
    """Reorder the rows of each head from neighbouring pairs to two halves."""
    return heads.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)


def _make_config(
    sizes: LatentSizes, form: _Form, vocabulary: int, *, kv_norm: bool
) -> LanguageModelConfig:
    kv_heads, picks_blocks = form
    variant = Variant(
        sharing=share("q", "k", "k"),
        num_kv_heads=None if kv_heads == sizes.heads else kv_heads,
        decoupled=sizes.rope,
        latent=None if picks_blocks else sizes.width,
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
        num_layers=sizes.num_layers,
        vocabulary=vocabulary,
        max_tokens=sizes.max_tokens,
        positions="none",
        tied_head=sizes.tied_head,
    )
