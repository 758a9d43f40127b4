"""Keys that are stored as they were projected and turned when they are read.

With j = 64 b + r and an un-rotated key k_j, q' R(j) k_j = (R(-64 b) q)' R(r) k_j for a query q that
was turned by its own position: a kernel turns the query once for 64 keys, and the keys by one small
table that stays in the first cache.
"""

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PERIOD = 64
"""Tokens after which the table for keys begins again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyRotation:
    """Rotary positions of stored keys: the first half of the trailing slice pairs with the second.

    Source: Su et al. 2021, RoFormer.
    """

    dim: int
    """Trailing channels that are turned, an even number."""
    base: float
    """Channel pair k turns by ``base^(-2k/dim)`` a position."""
    first: Int[Tensor, " batch"] | None = None
    """Index of the key at position 0 in each row: its padding, or minus the keys dropped."""

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"expected an even number of rotated channels, got {self.dim}")


def angles(positions: Int[Tensor, "*rows"], rotation: KeyRotation) -> Float[Tensor, "*rows pairs"]:
    """Return the angle of each pair of channels at each position, in float64."""
    index = torch.arange(0, rotation.dim, 2, dtype=torch.float64, device=positions.device)
    return positions.double()[..., None] * rotation.base ** (-index / rotation.dim)


def rotate_keys(
    key: Float[Tensor, "batch kv_heads keys dim"], rotation: KeyRotation
) -> Float[Tensor, "batch kv_heads keys dim"]:
    """Turn every key by its index; the queries take the shift of the rows."""
    turns = angles(torch.arange(key.shape[2], device=key.device), rotation)
    return _rotate(key, turns)


def shift_queries(
    query: Float[Tensor, "batch heads queries dim"], rotation: KeyRotation
) -> Float[Tensor, "batch heads queries dim"]:
    """Turn queries on by the shift of their row, so that keys can be turned by their index."""
    if rotation.first is None:
        return query
    return _rotate(query, angles(rotation.first, rotation)[:, None, None])


def _rotate(heads: Tensor, turns: Tensor) -> Tensor:
    dim = 2 * turns.shape[-1]
    still, turned = heads[..., : heads.shape[-1] - dim], heads[..., heads.shape[-1] - dim :]
    # Half precision would turn a long context's keys by angles of three digits.
    wide = torch.promote_types(heads.dtype, torch.float32)
    cos, sin = turns.cos().to(wide), turns.sin().to(wide)
    first, second = turned.to(wide).chunk(2, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((still, *(part.to(heads.dtype) for part in parts)), dim=-1)


@functools.lru_cache(maxsize=16)
def near_table(dim: int, base: float, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the positions of a period, padded with zeros to ``width``."""
    return _table(torch.arange(PERIOD), KeyRotation(dim=dim, base=base), width)


@functools.lru_cache(maxsize=16)
def far_table(dim: int, base: float, width: int, periods: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the positions at which periods begin."""
    return _table(torch.arange(periods) * PERIOD, KeyRotation(dim=dim, base=base), width)


def _table(positions: Tensor, rotation: KeyRotation, width: int) -> tuple[Tensor, Tensor]:
    turns = angles(positions, rotation)
    table = torch.zeros(2, positions.numel(), width, dtype=torch.float32)
    table[0, :, : turns.shape[-1]] = turns.cos()
    table[1, :, : turns.shape[-1]] = turns.sin()
    return table[0], table[1]
