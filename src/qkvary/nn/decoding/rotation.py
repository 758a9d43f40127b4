"""Tables of cosines and sines for keys that the native step rotates when it reads them.

With j = 64 b + r and an un-rotated key k_j, q' R(j) k_j = (R(-64 b) q)' R(r) k_j for a query q that
is rotated by its own position: the step rotates the query once for 64 keys, and rotates the keys
with one small table that stays in the first-level cache.

Source: Su et al. 2021, RoFormer.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.rotary import RotaryScaling

PERIOD = 64
"""Number of positions in the near table; the far table holds the multiples of it."""


class Turn(NamedTuple):
    """The settings of a layer's rotation."""

    dim: int
    """Number of rotated channels per head; even."""
    base: float
    """Channel pair k rotates by ``base^(-2k/dim)`` per position, before any scaling."""
    scaling: RotaryScaling | None = None
    """The scaling of the frequencies, if any."""
    tokens: int = 0
    """The length of the text, if the scaling depends on it; otherwise 0."""


def turn_of(config: AttentionConfig, tokens: int) -> Turn:
    """Return the rotation of a layer, for texts of at most this many tokens."""
    position, counted = config.position, tokens if config.turns_by_length else 0
    return Turn(config.rotated_channels, position.rotary_base, position.scaling, counted)


@functools.lru_cache(maxsize=16)
def near_table(turn: Turn, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the positions of a period: [positions, width] each.

    Args:
        turn: The rotation; the factor of a scaled one is part of the table.
        width: Columns; those after the ``dim / 2`` pairs are zeros.
    """
    cos, sin = _table(torch.arange(PERIOD), turn, width)
    if turn.scaling is None:
        return cos, sin
    return cos * turn.scaling.attention_factor, sin * turn.scaling.attention_factor


@functools.lru_cache(maxsize=16)
def far_table(turn: Turn, width: int, periods: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the first position of each period, as :func:`near_table`.

    It omits the factor, because both tables are applied to the same product.
    """
    return _table(torch.arange(periods) * PERIOD, turn, width)


def _table(positions: Tensor, turn: Turn, width: int) -> tuple[Tensor, Tensor]:
    dim, base, scaling, tokens = turn
    index = torch.arange(0, dim, 2, dtype=torch.float64)
    frequencies = base ** (-index / dim)
    if scaling is not None:
        frequencies = frequencies / index.new_tensor(scaling.divisors(dim, base, tokens))
    angles = positions.double()[:, None] * frequencies
    table = torch.zeros(2, positions.numel(), width, dtype=torch.float32)
    table[0, :, : dim // 2], table[1, :, : dim // 2] = angles.cos(), angles.sin()
    return table[0], table[1]
