"""Position terms: sinusoids, the ``+`` bias, rotary, ALiBi and the learned relative bias.

Every table is computed in float64 from integer positions and then cast, so that the dtype of a
network decides its precision and nothing else does.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.nn.draws import Draws


def sinusoid(
    positions: Int[Tensor, "batch tokens"], width: int, dtype: torch.dtype
) -> Float[Tensor, "batch tokens width"]:
    """The Transformer's sinusoidal positions, sine and cosine interleaved, base 10,000."""
    return _interleaved(positions, 2 * math.ceil(width / 2))[..., :width].to(dtype)


class PlusBias(nn.Module):
    """The papers' ``+`` in its reduced form: scores become ``tau a_ij + g(j)``.

    The published form adds a fixed 2D sinusoid P[i,j] to m copies of the scaled score map and maps
    them back with a 1x1 linear (w, b). Its channels depend on the row only or on the column only;
    under the softmax the row part and b cancel, so that

        tau = sum_c w_c,    g(j) = sum over column channels c of w_c E(j)_c.

    The parameters are the published m + 1 (under Adam they train differently from tau and g).
    It has no joint (i, j) term, and tau starts with a random sign.

    Source: Kayyam et al. 2026, section 2; the reduction is proved in the tests.
    """

    def __init__(self, config: AttentionConfig) -> None:
        """Create the m weights and the bias, one set a layer or one a head."""
        super().__init__()
        position = config.position
        sets = config.num_heads if position.plus_per_head else 1
        self.row_features = position.plus_row_features
        self.weight = nn.Parameter(torch.empty(sets, position.plus_features))
        self.bias = nn.Parameter(torch.empty(sets))

    def initialize(self, draws: Draws, init: Initialization) -> None:
        """Draw the map as the m -> 1 linear layer that it is."""
        features = self.weight.shape[1]
        draws.weight("plus.weight", self.weight, init, init.weight_std(features, 1))
        draws.bias("plus.bias", self.bias, init, features)

    def temperature(self) -> Float[Tensor, "sets 1 1"]:
        """The factor tau on content scores."""
        return self.weight.sum(dim=-1)[:, None, None]

    def key_bias(self, key_positions: Int[Tensor, "rows keys"]) -> Float[Tensor, "rows keys sets"]:
        """The bias g(j) of every key."""
        width = self.weight.shape[1] - self.row_features
        features = _interleaved(key_positions, self.row_features)[..., :width]
        # The published bias b shifts a whole row: it is kept as a parameter, and adding it here
        # costs nothing and gives it the zero gradient that it has in the published form.
        weight = self.weight[:, self.row_features :]
        return F.linear(features.to(weight.dtype), weight, self.bias)


class RelativeBias(nn.Module):
    """A learned bias b_h(i - j) per head and clipped distance: joint in (i, j), not symmetric."""

    def __init__(self, config: AttentionConfig) -> None:
        """Create the table; causal layers have no entries for the future."""
        super().__init__()
        self.furthest = config.position.relative_distance
        self.nearest = 0 if config.causal else -self.furthest
        size = self.furthest - self.nearest + 1
        self.weight = nn.Parameter(torch.empty(config.num_heads, size))

    def forward(
        self, queries: Int[Tensor, "batch queries"], keys: Int[Tensor, "batch keys"]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """The bias of every pair."""
        distance = queries[:, :, None] - keys[:, None, :]
        index = distance.clamp(self.nearest, self.furthest) - self.nearest
        return self.weight[:, index].transpose(0, 1)


def alibi_bias(
    queries: Int[Tensor, "batch queries"],
    keys: Int[Tensor, "batch keys"],
    num_heads: int,
    dtype: torch.dtype,
) -> Float[Tensor, "batch heads queries keys"]:
    """Minus the distance |i - j| times a slope per head, 2^(-8 (h+1) / heads).

    Source: Press et al. 2022, "Train Short, Test Long". With |i - j| the bias is symmetric.
    """
    heads = torch.arange(1, num_heads + 1, dtype=torch.float64, device=queries.device)
    slopes = torch.exp2(-8.0 * heads / num_heads)
    distance = (queries[:, :, None] - keys[:, None, :]).abs().double()
    return (-slopes[:, None, None] * distance[:, None]).to(dtype)


class Rotation:
    """Rotary positions on the trailing channels of a head: ``R(p)`` for given positions.

    The first half of the rotated slice pairs with the second half.

    Source: Su et al. 2021, RoFormer.
    """

    def __init__(
        self, positions: Int[Tensor, "batch tokens"], config: AttentionConfig, dtype: torch.dtype
    ) -> None:
        """Compute cosines and sines of ``positions``."""
        self.dim = config.position.rotary_dim(config.size_per_head)
        index = torch.arange(0, self.dim, 2, dtype=torch.float64, device=positions.device)
        frequencies = config.position.rotary_base ** (-index / self.dim)
        angles = positions.double()[:, None, :, None] * frequencies
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turn(
        self, heads: Float[Tensor, "batch heads tokens head_dim"], *, back: bool = False
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Rotate by the positions, or back by them."""
        still, turned = heads[..., : -self.dim], heads[..., -self.dim :]
        first, second = turned.chunk(2, dim=-1)
        sin = -self.sin if back else self.sin
        parts = (still, first * self.cos - second * sin, second * self.cos + first * sin)
        return torch.cat(parts, dim=-1)


def _interleaved(positions: Tensor, width: int) -> Tensor:
    """(sin p f_0, cos p f_0, sin p f_1, ...) with f_k = 10000^(-2k/width), in float64."""
    frequencies = [10_000.0 ** (-channel / width) for channel in range(0, width, 2)]
    steps = torch.tensor(frequencies, dtype=torch.float64, device=positions.device)
    angles = positions.unsqueeze(-1) * steps
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
