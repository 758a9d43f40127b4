"""The sources of an attention layer: learned projections, full or low-rank, and the input."""

import math
from collections.abc import Collection, Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.sharing import IDENTITY, Source
from qkvary.nn.initializer import Initializer
from qkvary.nn.linear import linear

FEW_ROWS = 16
"""Tokens of a batch up to which projections are not joined where no gradient is wanted."""


class Projection(nn.Module):
    """``x W^T + b``, or ``x A^T B^T + b`` with an inner width below the layer's (low rank)."""

    def __init__(self, d_model: int, width: int, *, bias: bool, rank: int | None = None) -> None:
        """Create the weights.

        Args:
            d_model: Channels in.
            width: Channels out.
            bias: Whether b exists.
            rank: Inner width, ``None`` for a full matrix.
        """
        super().__init__()
        self.width = width
        self.down = None if rank is None else nn.Parameter(torch.empty(rank, d_model))
        self.weight = nn.Parameter(torch.empty(width, d_model if rank is None else rank))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        inner = self.weight if self.down is None else self.down
        sizes = f"in_features={inner.shape[1]}, out_features={self.width}"
        rank = "" if self.down is None else f", rank={self.down.shape[0]}"
        return f"{sizes}, bias={self.bias is not None}{rank}"

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch width"]:
        """Project."""
        return self.project_up(self.project_down(x))

    def project_down(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch inner"]:
        """Return the first half of a low-rank projection; of a full one, the input itself."""
        return x if self.down is None else linear(x, self.down)

    def project_up(self, inner: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch width"]:
        """Return the rest of the projection."""
        return linear(inner, self.weight, self.bias)

    def initialize(
        self, initializer: Initializer, name: str, init: Initialization, std: float
    ) -> None:
        """Draw the weights; a low-rank product starts with the deviation of the full matrix.

        So scores of a low-rank key start as large as those of a full one, under every scheme. Two
        of torch's linear layers, as in the overview article's code, draw the second half with
        1/sqrt(3 rank), and their product starts with 1/sqrt(3) of that deviation.
        """
        if self.down is None:
            initializer.weight(f"{name}.weight", self.weight, init, std)
            initializer.bias(f"{name}.bias", self.bias, init, self.weight.shape[1])
            return
        rank, d_model = self.down.shape
        initializer.weight(f"{name}.down", self.down, init, std)
        initializer.weight(f"{name}.weight", self.weight, init, 1.0 / math.sqrt(rank))
        initializer.bias(f"{name}.bias", self.bias, init, d_model)


def split_heads(
    flat: Float[Tensor, "batch tokens width"], heads: int
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Cut the channels of a source into heads."""
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def project_together(
    x: Float[Tensor, "*batch d_model"], projections: Sequence[Projection]
) -> list[Float[Tensor, "*batch width"]]:
    """Apply several projections to one input, full ones as a single matrix product.

    Joining the weights copies them. A product of few rows takes no longer than that copy, so that
    decoding projects one by one.
    """
    full = [projection for projection in projections if projection.down is None]
    few = not torch.is_grad_enabled() and x.numel() <= FEW_ROWS * x.shape[-1]
    if len(full) < 2 or few:
        return [projection(x) for projection in projections]
    weight = torch.cat(tuple(projection.weight for projection in full))
    biases: list[Tensor] = [projection.bias for projection in full if projection.bias is not None]
    joined = linear(x, weight, torch.cat(biases) if biases else None)
    parts = dict(zip(full, joined.split([part.width for part in full], dim=-1), strict=True))
    return [parts[part] if part in parts else part(x) for part in projections]


def make_sources(
    x: Float[Tensor, "batch tokens d_model"],
    names: Collection[Source],
    projections: Mapping[Source, Projection],
    config: AttentionConfig,
) -> dict[str, Float[Tensor, "batch heads tokens head_dim"]]:
    """Return the sources of these names, cut into heads."""
    learned: list[Source] = [source for source in projections if source in names]
    outputs = project_together(x, [projections[source] for source in learned])
    flat: dict[Source, Tensor] = dict(zip(learned, outputs, strict=True))
    if IDENTITY in names:
        flat[IDENTITY] = x
    return {source: split_heads(part, config.heads(source)) for source, part in flat.items()}


def make_query(
    x: Float[Tensor, "batch tokens d_model"],
    source: Float[Tensor, "batch source_heads tokens head_dim"],
    maps: Float[Tensor, "heads head_dim head_dim"] | None,
    config: AttentionConfig,
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Return the query of every head from the source that it reads, or from that and ``x``."""
    form = config.variant.query_form
    if form == "plain":
        return source
    if maps is not None:
        per_group = maps.unflatten(0, (source.shape[1], -1))
        return (source[:, :, None] @ per_group).flatten(1, 2)
    change = F.gelu(source) if form == "residual-gelu" else source
    return split_heads(x, config.num_heads) + change
