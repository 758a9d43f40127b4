"""Positions: sinusoids and the 2D table of ``+`` in Python floats, rotations of the plane."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def sinusoid(position: int, channels: int) -> list[float]:
    """(sin p f_0, cos p f_0, sin p f_1, ...) with f_k = 10000^(-2k/channels)."""
    values: list[float] = []
    for k in range((channels + 1) // 2):
        angle = position * 10_000.0 ** (-2.0 * k / channels)
        values += [math.sin(angle), math.cos(angle)]
    return values[:channels]


def plus_table(row: int, column: int, features: int) -> list[float]:
    """P[i, j, :] of the published ``+``: the row's and the column's sinusoid, cut to m channels."""
    channels = 2 * math.ceil(features / 4)
    return (sinusoid(row, channels) + sinusoid(column, channels))[:features]


def rotate(
    heads: Tensor, positions: Sequence[int], *, dim: int, base: float, back: bool = False
) -> Tensor:
    """Turn the last ``dim`` channels by the position; channel k pairs with channel k + dim/2."""
    still, first, second = heads.split([heads.shape[-1] - dim, dim // 2, dim // 2], dim=-1)
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.tensor(positions)[:, None] * frequencies * (-1.0 if back else 1.0)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((still, turned.real, turned.imag), dim=-1)


def count_positions(
    length: int, mask: Sequence[bool] | None, documents: Sequence[int] | None
) -> list[int]:
    """Positions of one row: counted from the first real token of each document."""
    positions: list[int] = []
    start = 0
    for index in range(length):
        if documents is not None and index > 0 and documents[index] != documents[index - 1]:
            start = index
        real = (place for place in range(start, index) if mask is None or mask[place])
        positions.append(index - next(real, index))
    return positions
