"""Tables of cosines and sines for keys that the native step rotates when it reads them.

With j = 64 b + r and an un-rotated key k_j, q' R(j) k_j = (R(-64 b) q)' R(r) k_j for a query q that
is rotated by its own position: the step rotates the query once for 64 keys, and the keys by one
small table that stays in the first-level cache.

Source: Su et al. 2021, RoFormer.
"""

import functools

import torch
from torch import Tensor

PERIOD = 64
"""Tokens after which the table for keys begins again."""


@functools.lru_cache(maxsize=16)
def near_table(dim: int, base: float, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the positions of a period: [positions, width] each.

    Args:
        dim: Rotated channels of a head, an even number.
        base: Channel pair k rotates by ``base^(-2k/dim)`` per position.
        width: Columns; those after the ``dim / 2`` pairs are zeros.
    """
    return _table(torch.arange(PERIOD), dim, base, width)


@functools.lru_cache(maxsize=16)
def far_table(dim: int, base: float, width: int, periods: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the first position of each period; see :func:`near_table`."""
    return _table(torch.arange(periods) * PERIOD, dim, base, width)


def _table(positions: Tensor, dim: int, base: float, width: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(0, dim, 2, dtype=torch.float64)
    angles = positions.double()[:, None] * base ** (-index / dim)
    table = torch.zeros(2, positions.numel(), width, dtype=torch.float32)
    table[0, :, : dim // 2], table[1, :, : dim // 2] = angles.cos(), angles.sin()
    return table[0], table[1]
