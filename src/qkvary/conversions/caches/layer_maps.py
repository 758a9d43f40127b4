"""Reads an attention layer as matrices, and writes matrices as parameters of a layer.

The matrices act on row vectors. A constant 1 is appended to the layer's input, so that biases are
rows of the matrices.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.nn.attention import Attention
from qkvary.nn.role_maps import make_role_maps

Weights = dict[str, Tensor]
"""The parameters of an attention layer's projections by name, in float64."""
SMALLEST_SHARE = 1e-9
"""Regularisation of second moments: this share of the largest eigenvalue is added to every
eigenvalue, so that the root of the moment can be inverted."""


class Converted(NamedTuple):
    """A converted layer."""

    weights: Weights
    lost: float | None = None
    """The share of the spectrum of keys and values that is dropped; None for methods without a
    spectrum."""
    spectrum: Tensor | None = None
    """The shares that joint tensors of 0, 1, 2, ... channels would drop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMaps:
    """The matrices of a layer for query, key, value and output, in float64."""

    config: AttentionConfig
    query: Float[Tensor, "inputs heads head_dim"]
    key: Float[Tensor, "inputs kv_heads head_dim"]
    value: Float[Tensor, "inputs kv_heads head_dim"]
    output: Float[Tensor, "heads head_dim d_model"]
    output_bias: Float[Tensor, " d_model"]
    """The bias of the output projection; zeros for a layer without one."""
    moment: Float[Tensor, "inputs inputs"]
    """The second moment of the layer's input with the appended 1."""

    @property
    def heads_of_group(self) -> int:
        """Number of query heads per KV head."""
        return self.query.shape[1] // self.key.shape[1]

    def query_moments(self) -> Float[Tensor, "kv_heads head_dim head_dim"]:
        """Return, for each KV head, the second moment of its queries, summed over query heads."""
        query = self.query.unflatten(1, (self.key.shape[1], -1))
        return torch.einsum("dghi,de,eghj->gij", query, self.moment, query)

    def output_moments(self) -> Float[Tensor, "kv_heads head_dim head_dim"]:
        """Return ``W_O W_O^T`` for each KV head. It weights errors of the head's values."""
        output = self.output.unflatten(0, (self.key.shape[1], -1))
        return torch.einsum("ghid,ghjd->gij", output, output)


def read_layer(attention: Attention, moment: Float[Tensor, "inputs inputs"]) -> LayerMaps:
    """Return the matrices of a layer."""
    query, key, value = (
        torch.cat((role.weight, role.bias[..., None]), dim=2).permute(2, 0, 1)
        for role in make_role_maps(attention)
    )
    output = attention.o_proj.weight.detach().cpu().double().T
    bias = cast("Tensor | None", attention.o_proj.bias)
    return LayerMaps(
        config=attention.config,
        query=query,
        key=key,
        value=value,
        output=output.unflatten(0, (attention.config.num_heads, -1)),
        output_bias=output.new_zeros(output.shape[1])
        if bias is None
        else bias.detach().cpu().double(),
        moment=moment,
    )


def write_layer(
    maps: LayerMaps,
    config: AttentionConfig,
    output: Float[Tensor, "heads channels d_model"],
    **projections: Float[Tensor, "inputs *_ channels"],
) -> Weights:
    """Return the parameters of a layer's projections.

    The output bias is that of the original layer. Queries absorb the ratio of the two layers' score
    scales. In each matrix, heads may be a separate dimension or part of the last dimension.
    """
    weights: Weights = {"o_proj.weight": output.flatten(0, 1).T}
    if config.out_bias:
        weights["o_proj.bias"] = maps.output_bias
    factor = maps.config.score_scale / config.score_scale
    for name, matrix in projections.items():
        flat = (matrix * factor if name.startswith("q") else matrix).flatten(1)
        weights[f"{name}.weight"] = flat[:-1].T
        if config.bias:
            weights[f"{name}.bias"] = flat[-1]
    return weights


def take_root(moment: Float[Tensor, "*n n n"]) -> tuple[Tensor, Tensor]:
    """Return the matrix square root of a second moment, and the inverse of that root."""
    values, vectors = torch.linalg.eigh(moment)
    least = values.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
    roots = values.clamp(min=0).add(SMALLEST_SHARE * least).sqrt()[..., None, :]
    return (vectors * roots) @ vectors.mT, (vectors / roots) @ vectors.mT
