"""The gauge of attention heads: matrices between query and key, and between value and output.

``k A`` with ``q A^-T`` gives the same scores, ``v B`` with ``B^-1 W_O`` the same output: one A and
one B for each KV head. A projection that two roles share has one matrix, which has to fit both;
rotary positions leave one complex number for each frequency.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Proposition 4.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import format_label
from qkvary.arch.sharing import IDENTITY, Source
from qkvary.conversions.attention_bases import LayerDraft, check_terms
from qkvary.storage.errors import UsageError

CONDITION = 10.0
"""Condition number of random gauges."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """The matrices of a layer, one a KV head."""

    key: Float[Tensor, "kv_heads head_dim head_dim"]
    """A: keys are multiplied by A, queries by its inverse transpose."""
    value: Float[Tensor, "kv_heads head_dim head_dim"]
    """B: values are multiplied by B, the output projection by its inverse."""


def draw_gauge(layer: LayerDraft, generator: torch.Generator) -> Gauge:
    """Draw a random gauge of a layer that does not change the output.

    Raises:
        UsageError: if there is none but the identity.
    """
    config, sharing = layer.config, layer.config.variant.sharing
    variant = config.variant
    if variant.core_name != "softmax":
        raise UsageError(f"expected the core softmax in {layer.name}, got {variant.core_name}")
    check_terms(layer)
    is_plain, rotated = variant.query_form == "plain", variant.positions == "rotary"
    fixed = IDENTITY in (sharing.key, sharing.query) or variant.query_form.startswith("residual")
    same = torch.eye(config.size_per_head, dtype=torch.float64).repeat(config.num_kv_heads, 1, 1)
    joins_key = sharing.value == sharing.key
    joins_query = is_plain and sharing.value == sharing.query
    fixes_value = sharing.value == IDENTITY or (fixed and (joins_key or joins_query))
    if fixed and fixes_value:
        raise UsageError(
            f"expected a key or value that no identity fixes in {layer.name}, got "
            f"{format_label(variant)}"
        )
    draw = _drawer(config, generator, orthogonal=is_plain and sharing.is_symmetric)
    key = same if fixed else draw(rotated)
    if joins_key or joins_query:
        return Gauge(key, key if joins_key else torch.linalg.inv(key).mT)
    draw = _drawer(config, generator, orthogonal=False)
    return Gauge(key, same if fixes_value else draw(rotated and config.value_rope != "none"))


def apply_gauge(layer: LayerDraft, gauge: Gauge) -> LayerDraft:
    """Return a layer in another gauge, which :func:`draw_gauge` returned."""
    config, sharing = layer.config, layer.config.variant.sharing
    group = config.num_heads // config.num_kv_heads
    query = torch.linalg.inv(gauge.key).mT.repeat_interleave(group, 0)
    value = gauge.value.repeat_interleave(group, 0)
    weights = dict(layer.weights)
    matrices: dict[Source, Tensor] = {sharing.query: query}
    # Set after the query: if the query shares this source, the source is one matrix, or the query
    # has a map.
    matrices |= {sharing.value: gauge.value, sharing.key: gauge.key}
    for source in sharing.projections:
        _turn(weights, source, matrices[source])
    if "query_map" in weights:
        undone = torch.linalg.inv(matrices[sharing.query].repeat_interleave(group, 0))
        weights["query_map"] = undone @ weights["query_map"] @ query
    heads = weights["o_proj.weight"].unflatten(1, (config.num_heads, -1)).transpose(0, 1)
    weights["o_proj.weight"] = (heads @ torch.linalg.inv(value).mT).transpose(0, 1).flatten(1)
    return LayerDraft(config, weights, layer.name)


def _turn(weights: dict[str, Tensor], source: Source, matrices: Tensor) -> None:
    for name in (f"{source}_proj.weight", f"{source}_proj.bias"):
        if name in weights:
            columns = weights[name].reshape(*matrices.shape[:2], -1)
            weights[name] = (matrices.mT @ columns).reshape(weights[name].shape)


def _drawer(
    config: AttentionConfig, generator: torch.Generator, *, orthogonal: bool
) -> Callable[[bool], Float[Tensor, "kv_heads head_dim head_dim"]]:
    """Return a function that draws matrices; for rotary positions, ones that commute with them."""
    heads, size = config.num_kv_heads, config.size_per_head
    most = 1.0 if orthogonal else CONDITION

    def draw(commutes: bool) -> Tensor:
        rotated = config.position.rotary_dim(size) if commutes else 0
        found = torch.zeros(heads, size, size, dtype=torch.float64)
        still = size - rotated
        found[:, :still, :still] = _draw_matrices(heads, still, most, generator)
        found[:, still:, still:] = _draw_turns(heads, rotated // 2, most, generator)
        return found

    return draw


def _draw_matrices(heads: int, size: int, most: float, generator: torch.Generator) -> Tensor:
    """Draw matrices with a given condition number: orthogonal factors around singular values."""
    noise = torch.randn(2, heads, size, size, generator=generator, dtype=torch.float64)
    left, right = torch.linalg.qr(noise).Q
    values = torch.logspace(-0.5, 0.5, max(size, 1), most, dtype=torch.float64)[:size]
    return left @ (values[:, None] * right)


def _draw_turns(heads: int, pairs: int, most: float, generator: torch.Generator) -> Tensor:
    """Draw matrices that scale and rotate the channel pair of each frequency."""
    drawn = torch.rand(2, heads, pairs, generator=generator, dtype=torch.float64)
    angle, size = 2 * math.pi * drawn[0], most ** (drawn[1] - 0.5)
    a, b = torch.diag_embed(size * angle.cos()), torch.diag_embed(size * angle.sin())
    return torch.cat((torch.cat((a, b), dim=-1), torch.cat((-b, a), dim=-1)), dim=-2)
