"""Roles of attention as plain linear maps of the layer input, whatever they share.

Identity roles become unit matrices; low-rank products and maps of the query are multiplied out.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from qkvary.arch.sharing import IDENTITY, Source
from qkvary.nn.attention import Attention


class LinearMap(NamedTuple):
    """``x W^T + b`` in float64, with rows split into heads: [heads, head_dim, ...]."""

    weight: Tensor
    bias: Tensor


def make_source(attention: Attention, source: Source) -> LinearMap:
    """Return a source as a linear map, split into heads."""
    config = attention.config
    if source == IDENTITY:
        weight = torch.eye(config.d_model, dtype=torch.float64)
        bias = torch.zeros(config.d_model, dtype=torch.float64)
    else:
        projection = attention.projections[source]
        weight = projection.weight.detach().cpu().double()
        if projection.down is not None:
            weight = weight @ projection.down.detach().cpu().double()
        bias = torch.zeros(len(weight), dtype=torch.float64)
        if projection.bias is not None:
            bias = projection.bias.detach().cpu().double()
    cut = (config.heads(source), config.channels(source))
    return LinearMap(weight.unflatten(0, cut), bias.unflatten(0, cut))


def shape_query(attention: Attention, source: LinearMap) -> LinearMap:
    """Apply the query's own map to its source."""
    config = attention.config
    if attention.query_map is not None:
        maps = attention.query_map.detach().cpu().double()
        own = copy_heads(source, config.num_heads)
        weight = maps.mT @ own.weight
        return LinearMap(weight, (maps.mT @ own.bias[..., None]).squeeze(-1))
    if config.variant.query_form == "residual":
        cut = (config.num_heads, config.size_per_head)
        unit = torch.eye(config.d_model, dtype=torch.float64).unflatten(0, cut)
        return LinearMap(source.weight + unit, source.bias)
    return source


def copy_heads(one: LinearMap, heads: int) -> LinearMap:
    """Return as many heads, by copies of each."""
    times = heads // len(one.weight)
    return LinearMap(
        one.weight.repeat_interleave(times, dim=0), one.bias.repeat_interleave(times, dim=0)
    )


def join_heads(one: LinearMap) -> LinearMap:
    """Return the map with the rows of all heads one after the other."""
    return LinearMap(one.weight.flatten(0, 1), one.bias.flatten())
