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
from qkvary.nn.linear import apply, is_plain, linear

FEW_ROWS = 16
"""Tokens of a batch up to which projections are not joined where no gradient is wanted."""


class LowRank(nn.Module):
    """``x A^T B^T + b`` with an inner width below the layer's."""

    def __init__(self, d_model: int, width: int, *, bias: bool, rank: int) -> None:
        """Create the weights.

        Args:
            d_model: Channels in.
            width: Channels out.
            bias: Whether b exists.
            rank: Inner width.
        """
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, d_model))
        self.weight = nn.Parameter(torch.empty(width, rank))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        (rank, d_model), width = self.down.shape, self.weight.shape[0]
        sizes = f"in_features={d_model}, out_features={width}"
        return f"{sizes}, bias={self.bias is not None}, rank={rank}"

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch width"]:
        """Project."""
        return self.project_up(self.project_down(x))

    def project_down(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch inner"]:
        """Return the first half."""
        return linear(x, self.down)

    def project_up(self, inner: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch width"]:
        """Return the rest of it."""
        return linear(inner, self.weight, self.bias)

    def initialize(
        self, initializer: Initializer, name: str, init: Initialization, std: float
    ) -> None:
        """Draw the weights; the product starts with the deviation of the full matrix.

        So scores of a low-rank key start as large as those of a full one, under every scheme. Two
        of torch's linear layers, as in the overview article's code, draw the second half with
        1/sqrt(3 rank), and their product starts with 1/sqrt(3) of that deviation.
        """
        rank, d_model = self.down.shape
        initializer.weight(f"{name}.down", self.down, init, std)
        initializer.weight(f"{name}.weight", self.weight, init, 1.0 / math.sqrt(rank))
        initializer.bias(f"{name}.bias", self.bias, init, d_model)


def make_projection(
    d_model: int, width: int, *, bias: bool, rank: int | None = None
) -> nn.Linear | LowRank:
    """Return a projection whose weights are not set, full or with an inner width.

    A full one draws no random numbers, as ``nn.Linear`` does where it is built on a device.
    """
    if rank is not None:
        return LowRank(d_model, width, bias=bias, rank=rank)
    layer = nn.Linear(d_model, width, bias=bias, device="meta")
    layer.weight = nn.Parameter(torch.empty(width, d_model))
    if bias:
        layer.bias = nn.Parameter(torch.empty(width))
    return layer


def read_matrix(projection: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a projection as one linear map, in float64 on the CPU.

    Raises:
        ValueError: for a module that has taken the place of a projection.
    """
    if not (is_plain(projection) or isinstance(projection, LowRank)):
        raise ValueError(
            f"expected a projection with its own weights, got {type(projection).__name__}; "
            "merge an adapter before its weights are read"
        )
    weight, bias = projection.weight.detach().cpu().double(), projection.bias
    if isinstance(projection, LowRank):
        weight = weight @ projection.down.detach().cpu().double()
    return weight, None if bias is None else bias.detach().cpu().double()


def split_heads(
    flat: Float[Tensor, "batch tokens width"], heads: int
) -> Float[Tensor, "batch heads tokens head_dim"]:
    """Cut the channels of a source into heads."""
    return flat.unflatten(-1, (heads, -1)).transpose(1, 2)


def project_together(
    x: Float[Tensor, "*batch d_model"], projections: Sequence[nn.Module]
) -> list[Float[Tensor, "*batch width"]]:
    """Apply several projections to one input, plain ones as a single matrix product.

    Joining the weights copies them. A product of few rows takes no longer than that copy, so that
    decoding projects one by one.
    """
    few = not torch.is_grad_enabled() and x.numel() <= FEW_ROWS * x.shape[-1]
    plain = [] if few else [projection for projection in projections if is_plain(projection)]
    # torch declares a bias as always there.
    all_biases: list[Tensor | None] = [projection.bias for projection in plain]
    biases = [bias for bias in all_biases if bias is not None]
    if len(plain) < 2 or len(biases) not in (0, len(plain)):
        return [apply(projection, x) for projection in projections]
    weight = torch.cat(tuple(projection.weight for projection in plain))
    joined = linear(x, weight, torch.cat(biases) if biases else None)
    widths = [part.out_features for part in plain]
    parts: dict[nn.Module, Tensor] = dict(zip(plain, joined.split(widths, dim=-1), strict=True))
    return [parts[part] if part in parts else part(x) for part in projections]


def make_sources(
    x: Float[Tensor, "batch tokens d_model"],
    names: Collection[Source],
    projections: Mapping[Source, nn.Module],
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
