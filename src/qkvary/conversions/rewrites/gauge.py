"""Puts heads in a random gauge: their matrices change, but the function of the network does not.

The matrices of query, key, value and output change together. Each KV head has one matrix A and one
matrix B: ``k A`` with ``q A^-T`` gives the same scores, and ``v B`` with ``B^-1 W_O`` gives the
same output. If two roles share a projection, one change has to fit both roles. With rotary
positions, A has only one free complex number per frequency.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", Proposition 4.2,
for query and key. The paper leaves value and output open.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import format_label
from qkvary.arch.sharing import IDENTITY, Source
from qkvary.conversions.attention_bases import LayerDraft, check_terms
from qkvary.conversions.bases import change_layers
from qkvary.conversions.draft import (
    Conditioning,
    Draft,
    RewriteOptions,
    Rewritten,
    measure_condition,
)
from qkvary.storage.errors import UsageError

STATEMENT = "Proposition 4.2 for query and key, and the same for value and output"
CONDITION = 10.0


def rewrite(draft: Draft, options: RewriteOptions) -> Rewritten:
    """Return the network with its heads in a random gauge; its label does not change."""
    generator = torch.Generator().manual_seed(options.seed)
    measured: list[Conditioning] = []

    def change(layer: LayerDraft) -> LayerDraft:
        gauge = draw_gauge(layer, generator)
        for letter, matrices in (("A", gauge.key), ("B", gauge.value)):
            worst = max(matrices, key=lambda one: float(torch.linalg.cond(one)))
            measured.append(measure_condition(worst, f"{letter} of {layer.name}"))
        return apply_gauge(layer, gauge)

    change_layers(draft, options.layer, change)
    return Rewritten(
        config=draft.config,
        weights=draft.weights,
        statement=f"{STATEMENT} (any skips and norms)",
        conditions=(
            "the core softmax",
            "keys and values that are projections",
            "a key or value whose basis is not fixed by an identity role",
        ),
        conditioning=tuple(measured),
    )


@dataclass(frozen=True, slots=True)
class Gauge:
    """The gauge matrices of a layer, one per KV head."""

    key: Float[Tensor, "kv_heads head_dim head_dim"]
    """The matrices A. Keys are multiplied by A, and queries by its inverse transpose."""
    value: Float[Tensor, "kv_heads head_dim head_dim"]
    """The matrices B. Values are multiplied by B, and the output projection by its inverse."""


def draw_gauge(layer: LayerDraft, generator: torch.Generator) -> Gauge:
    """Draw random gauge matrices that do not change the layer's output."""
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
            "expected a key or value whose basis is not fixed by an identity role in "
            f"{layer.name}, got {format_label(variant)}; an identity role is a query, key or value "
            "that is the layer input"
        )
    orthogonal = is_plain and sharing.is_symmetric
    key = same if fixed else _draw(config, generator, commutes=rotated, orthogonal=orthogonal)
    if joins_key or joins_query:
        return Gauge(key, key if joins_key else torch.linalg.inv(key).mT)
    if fixes_value:
        return Gauge(key, same)
    commutes = rotated and config.value_rope != "none"
    return Gauge(key, _draw(config, generator, commutes=commutes, orthogonal=False))


def apply_gauge(layer: LayerDraft, gauge: Gauge) -> LayerDraft:
    """Return a layer after applying a gauge from :func:`draw_gauge`."""
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
        turn = matrices[source]
        for name in (f"{source}_proj.weight", f"{source}_proj.bias"):
            if name in weights:
                columns = weights[name].reshape(*turn.shape[:2], -1)
                weights[name] = (turn.mT @ columns).reshape(weights[name].shape)
    if "query_map" in weights:
        undone = torch.linalg.inv(matrices[sharing.query].repeat_interleave(group, 0))
        weights["query_map"] = undone @ weights["query_map"] @ query
    heads = weights["o_proj.weight"].unflatten(1, (config.num_heads, -1)).transpose(0, 1)
    weights["o_proj.weight"] = (heads @ torch.linalg.inv(value).mT).transpose(0, 1).flatten(1)
    return LayerDraft(config, weights, layer.name)


def _draw(
    config: AttentionConfig, generator: torch.Generator, *, commutes: bool, orthogonal: bool
) -> Float[Tensor, "kv_heads head_dim head_dim"]:
    """Draw matrices with a condition number of at most ``CONDITION``, or of 1 if ``orthogonal``.

    If ``commutes``, they commute with the rotation of rotary positions.
    """
    heads, size = config.num_kv_heads, config.size_per_head
    most = 1.0 if orthogonal else CONDITION
    rotated = config.position.rotary_dim(size) if commutes else 0
    found = torch.zeros(heads, size, size, dtype=torch.float64)
    still = size - rotated
    # Orthogonal factors around singular values.
    noise = torch.randn(2, heads, still, still, generator=generator, dtype=torch.float64)
    left, right = torch.linalg.qr(noise).Q
    values = torch.logspace(-0.5, 0.5, max(still, 1), most, dtype=torch.float64)[:still]
    found[:, :still, :still] = left @ (values[:, None] * right)
    # Each pair of channels of one frequency is scaled and rotated.
    drawn = torch.rand(2, heads, rotated // 2, generator=generator, dtype=torch.float64)
    angle, length = 2 * math.pi * drawn[0], most ** (drawn[1] - 0.5)
    a, b = torch.diag_embed(length * angle.cos()), torch.diag_embed(length * angle.sin())
    turns = torch.cat((torch.cat((a, b), dim=-1), torch.cat((-b, a), dim=-1)), dim=-2)
    found[:, still:, still:] = turns
    return found
