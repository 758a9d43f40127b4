"""Cosines between the weights of a layer, by three definitions.

Cosines depend on the basis of a head, and this basis is arbitrary. The measures in ``subspaces``
do not depend on it.
"""

import math
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.analysis.results import CosineReading, RoleName
from qkvary.nn.role_maps import LinearMap, RoleMaps


def read_cosines(maps: RoleMaps) -> tuple[CosineReading, ...]:
    """Return the cosines of three pairs of weights: W_Q and W_K, W_Q and W_V, W_K and W_V.

    If the weights of a pair have different numbers of heads, each head of the smaller weight is
    compared with every head of its group in the larger weight.
    """
    named: dict[RoleName, LinearMap] = {"query": maps.query, "key": maps.key, "value": maps.value}
    return tuple(
        _compare(first, second, named[first], named[second])
        for first, second in combinations(named, 2)
    )


def _compare(first: RoleName, second: RoleName, left: LinearMap, right: LinearMap) -> CosineReading:
    heads = max(len(left.weight), len(right.weight))
    one, other = (part.copy_heads(heads).weight for part in (left, right))
    columns = [
        value for value in map(cosine, one.flatten(0, 1), other.flatten(0, 1)) if value is not None
    ]
    return CosineReading(
        first=first,
        second=second,
        flattened=cosine(one, other),
        columns=sum(columns) / len(columns) if columns else None,
        heads=tuple(map(cosine, one, other)),
        deviation=1 / math.sqrt(one.numel()),
        head_deviation=1 / math.sqrt(one[0].numel()),
    )


def cosine(one: Float[Tensor, "*shape"], other: Float[Tensor, "*shape"]) -> float | None:
    """Return the cosine of two tensors, flattened to vectors, or None if a tensor is zero."""
    norms = float(torch.linalg.vector_norm(one) * torch.linalg.vector_norm(other))
    return float((one * other).sum()) / norms if norms else None
