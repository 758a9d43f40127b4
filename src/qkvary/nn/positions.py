"""Positions as numbers: sinusoids, and rotations of the channels of a head.

Every table is computed in float64 from integer positions and then cast, so that the dtype of a
network decides its precision and nothing else does.
"""

import functools
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import Positions


def sinusoid(
    positions: Int[Tensor, "batch tokens"], width: int, dtype: torch.dtype, kind: Positions
) -> Float[Tensor, "batch tokens width"]:
    """Return the Transformer's sinusoidal positions, base 10,000.

    Args:
        positions: Positions of the tokens.
        width: Channels.
        dtype: Type of the result.
        kind: Whether sine and cosine alternate (``sinusoidal``) or all sines come first
            (``sinusoidal-halves``).
    """
    table = interleave_sinusoids(positions, 2 * math.ceil(width / 2))
    if kind == "sinusoidal-halves":
        table = table.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    return table[..., :width].to(dtype)


class Rotation:
    """Rotary positions on the trailing channels of a head: ``R(p)`` for given positions.

    The first half of the rotated slice pairs with the second half. Where the value reads the key's
    source, or is rotated as if it did, ``value_rope`` says what it is. Decoupled positions rotate
    all channels of separate heads.

    Source: Su et al. 2021, RoFormer.
    """

    def __init__(
        self,
        positions: Int[Tensor, "batch tokens"],
        config: AttentionConfig,
        dtype: torch.dtype,
        tokens: int | None = None,
    ) -> None:
        """Compute cosines and sines.

        Args:
            positions: Positions of the tokens.
            config: The layer.
            dtype: Type of the tables.
            tokens: The length of the text, for a rotation that depends on it; by default up to the
                last of the positions, in any row.
        """
        self.dim = config.rotated_channels
        index = torch.arange(0, self.dim, 2, dtype=torch.float64, device=positions.device)
        frequencies = config.position.rotary_base ** (-index / self.dim)
        scaling, self.factor = config.position.scaling, 1.0
        if scaling is not None:
            if tokens is None and scaling.depends_on_length and positions.numel():
                tokens = int(positions.max()) + 1
            divisors = scaling.divisors(self.dim, config.position.rotary_base, tokens or 0)
            frequencies = frequencies / index.new_tensor(divisors)
            self.factor = scaling.attention_factor
        angles = positions.double()[:, None, :, None] * frequencies
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        self.cos, self.sin = cos.to(dtype), sin.to(dtype)
        self.value_rope = config.value_rope
        self.growth = None
        if scaling is not None and scaling.query_growth:
            turns = torch.div(positions, scaling.original_tokens, rounding_mode="floor").double()
            growth = 1 + scaling.query_growth * torch.log1p(turns)
            self.growth = growth[:, None, :, None].to(dtype)

    def grow(
        self, queries: Float[Tensor, "batch heads tokens head_dim"]
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Multiply queries by what grows beyond the original length."""
        return queries if self.growth is None else queries * self.growth

    def rotate(
        self, heads: Float[Tensor, "batch heads tokens head_dim"], *, inverse: bool = False
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Multiply by the matrix of the positions, or by the transposed one, which turns back."""
        still, turned = heads[..., : -self.dim], heads[..., -self.dim :]
        first, second = turned.chunk(2, dim=-1)
        sin = -self.sin if inverse else self.sin
        parts = (still, first * self.cos - second * sin, second * self.cos + first * sin)
        return torch.cat(parts, dim=-1)

    def rotate_roles(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return key and value as the softmax reads them."""
        turned = self.rotate(key)
        if self.value_rope == "none":
            return turned, value
        return turned, turned if value is key else self.rotate(value)

    def restore_output(
        self, mixed: Float[Tensor, "batch heads queries head_dim"]
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Rotate mixed values back by the positions of the queries, where they are rotated."""
        return mixed if self.value_rope != "counter" else self.turn_back(mixed)

    def turn_back(
        self, rotated: Float[Tensor, "batch heads tokens head_dim"]
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Return what was rotated, without the factor of the rotation."""
        back = self.rotate(rotated, inverse=True)
        if self.factor == 1.0:
            return back
        still, turned = back[..., : -self.dim], back[..., -self.dim :]
        return torch.cat((still, turned / self.factor**2), dim=-1)


def make_rotation(
    config: AttentionConfig,
    positions: Int[Tensor, "batch tokens"],
    dtype: torch.dtype,
    tokens: int | None = None,
) -> Rotation | None:
    """Return the rotation by given positions, ``None`` for a layer that does not rotate."""
    return Rotation(positions, config, dtype, tokens) if config.rotated_channels else None


def interleave_sinusoids(
    positions: Int[Tensor, "*rows"], width: int
) -> Float[Tensor, "*rows width"]:
    """(sin p f_0, cos p f_0, sin p f_1, ...) with f_k = 10000^(-2k/width), in float64."""
    angles = positions.unsqueeze(-1) * _frequencies(width, positions.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


@functools.lru_cache(maxsize=8)
def _frequencies(width: int, device: torch.device) -> Tensor:
    frequencies = [10_000.0 ** (-channel / width) for channel in range(0, width, 2)]
    # No part of a graph, whatever mode it is made in.
    with torch.inference_mode(mode=False):
        return torch.tensor(frequencies, dtype=torch.float64, device=device)
