"""Positions with plain loops and Python floats: sinusoids, the 2D table of ``+``, rotary, ALiBi."""

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


def rotate(vector: Tensor, position: int, *, dim: int, base: float, back: bool = False) -> Tensor:
    """Turn the last ``dim`` channels by the position; channel k pairs with channel k + dim/2."""
    values = list(vector.unbind())
    start, half = len(values) - dim, dim // 2
    turned = list(values)
    for k in range(half):
        angle = position * base ** (-2.0 * k / dim)
        cos, sin = math.cos(angle), math.sin(-angle if back else angle)
        first, second = values[start + k], values[start + half + k]
        turned[start + k] = first * cos - second * sin
        turned[start + half + k] = first * sin + second * cos
    return torch.stack(turned)


def alibi(head: int, heads: int, query: int, key: int) -> float:
    """Minus slope times distance."""
    return -(2.0 ** (-8.0 * (head + 1) / heads)) * abs(query - key)


def count_positions(
    length: int, mask: Sequence[bool] | None, documents: Sequence[int] | None
) -> list[int]:
    """Positions of one row: counted from the first real token of each document."""
    positions: list[int] = []
    start = 0
    for index in range(length):
        new = documents is not None and index > 0 and documents[index] != documents[index - 1]
        if new:
            start = index
        waiting = mask is not None and not any(mask[start : index + 1])
        if waiting:
            positions.append(0)
            continue
        first = start
        while mask is not None and not mask[first]:
            first += 1
        positions.append(index - first)
    return positions
