"""The queries, keys and values (roles) of a layer as linear maps of the layer input.

This works for every sharing. Low-rank products and query maps are multiplied out, and an identity
role is a unit matrix. Scales, rotations and score terms are not part of the maps.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.sharing import IDENTITY, Source
from qkvary.nn.attention import Attention
from qkvary.nn.projections import read_matrix


class LinearMap(NamedTuple):
    """``x W^T + b`` in float64 on the CPU, with the rows of W cut into heads."""

    weight: Float[Tensor, "heads head_dim d_model"]
    bias: Float[Tensor, "heads head_dim"]
    """The bias; zeros if the projection has none."""

    def copy_heads(self, heads: int) -> "LinearMap":
        """Return the map with every head repeated for the query heads of its group."""
        times = heads // len(self.weight)
        return LinearMap(
            self.weight.repeat_interleave(times, dim=0), self.bias.repeat_interleave(times, dim=0)
        )


class RoleMaps(NamedTuple):
    """The linear maps of query, key and value. Each has its own number of heads."""

    query: LinearMap
    key: LinearMap
    value: LinearMap


def make_role_maps(attention: Attention) -> RoleMaps:
    """Return query, key and value as linear maps of the layer input.

    A query that is not linear in the layer input raises a ``ValueError``.
    """
    sharing = attention.config.variant.sharing
    query, key, value = (_make_source(attention, source) for source in sharing.roles.values())
    return RoleMaps(_shape_query(attention, query), key, value)


def _make_source(attention: Attention, source: Source) -> LinearMap:
    config = attention.config
    if source == IDENTITY:
        weight = torch.eye(config.d_model, dtype=torch.float64)
        bias = torch.zeros(config.d_model, dtype=torch.float64)
    else:
        weight, own = read_matrix(attention.projections[source])
        bias = torch.zeros(len(weight), dtype=torch.float64) if own is None else own
    cut = (config.heads(source), config.channels(source))
    return LinearMap(weight.unflatten(0, cut), bias.unflatten(0, cut))


def _shape_query(attention: Attention, source: LinearMap) -> LinearMap:
    config = attention.config
    if config.variant.query_form == "residual-gelu":
        raise ValueError("expected a query that is linear in the layer input, got residual-gelu")
    if attention.query_map is not None:
        maps = attention.query_map.detach().cpu().double()
        own = source.copy_heads(config.num_heads)
        weight = maps.mT @ own.weight
        return LinearMap(weight, (maps.mT @ own.bias[..., None]).squeeze(-1))
    if config.variant.query_form == "residual":
        cut = (config.num_heads, config.size_per_head)
        unit = torch.eye(config.d_model, dtype=torch.float64).unflatten(0, cut)
        return LinearMap(source.weight + unit, source.bias)
    return source
