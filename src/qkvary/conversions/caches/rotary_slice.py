"""Extracts one rotated key for several heads, the slice of their keys with the most energy.

A pair of rotated channels is one complex number, which the rotation multiplies by a phase. At each
frequency, the phase is the same for all KV heads. A unitary matrix can therefore mix the numbers of
the heads at one frequency without changing any score. The matrix is chosen so that the first number
affects scores as much as possible. The slice consists of the first numbers of all frequencies. The
rest of the keys is scored without rotation.

Source: decoupled positions are from DeepSeek-AI 2024, "DeepSeek-V2"; the rotation between heads
follows Meng et al. 2025, "TransMLA", here weighted by the energy of the queries.
"""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from qkvary.conversions.caches.layer_maps import LayerMaps

ROUNDING = 1e-12
"""Components of a key below this share of the largest one count as rounding errors and become 0."""


class RotarySlice(NamedTuple):
    """One rotated key for several heads, the queries for it, and the rest of the original keys."""

    key: Float[Tensor, "inputs channels"]
    query: Float[Tensor, "inputs heads channels"]
    rest: Float[Tensor, "inputs kv_heads head_dim"]
    """The part of each key outside the slice; it is scored with the layer's original queries."""

    @property
    def projections(self) -> dict[str, Tensor]:
        """The projections of decoupled positions by name; empty for a layer without rotation."""
        rotates = self.key.shape[1] > 0
        return {"q_rope_proj": self.query, "k_rope_proj": self.key} if rotates else {}


def cut_slice(
    maps: LayerMaps, heads: slice = slice(None), *, channels: int | None = None
) -> RotarySlice:
    """Return the slice for some KV heads, and the rest of their keys.

    If a head rotates more than ``channels`` channels, groups of neighbouring frequencies are
    merged, and each group rotates at its highest frequency.
    """
    rotated = maps.config.rotated_channels
    if not rotated:
        none = maps.query.unflatten(1, (maps.key.shape[1], -1))[:, heads].flatten(1, 2)[..., :0]
        return RotarySlice(maps.key[:, 0, :0], none, maps.key[:, heads])
    channels = rotated if channels is None else channels
    folded, frequencies = rotated // channels, channels // 2
    key = _pair(maps.key[:, heads], rotated)
    groups = key.shape[1]
    query = _pair(maps.query, rotated).unflatten(1, (maps.key.shape[1], -1))[:, heads]
    # [inputs, frequencies, numbers]: of all heads, the channels that rotate at the same frequency.
    numbers = key.unflatten(2, (frequencies, folded)).transpose(1, 2).flatten(2)
    moment = maps.moment.to(key.dtype)
    energy = torch.einsum("dghf,de,eghf->gf", query.conj(), moment, query).real
    weights = energy.unflatten(1, (frequencies, folded)).transpose(0, 1).flatten(1)
    weights = weights.clamp(min=torch.finfo(weights.dtype).tiny).sqrt()
    weighted = numbers * weights
    shared = torch.einsum("dfm,de,efn->fmn", weighted.conj(), moment, weighted)
    first = torch.linalg.eigh(shared).eigenvectors[..., -1]
    own = torch.einsum("dfn,fn->df", weighted, first)
    # Projects each channel onto the slice; the rest of the channel is ``left``.
    back = first.conj() / weights
    left = numbers - own[..., None] * back
    # Set rounding errors to zero, or the tensor of keys and values would have to store them.
    left = torch.where(left.abs() > ROUNDING * numbers.abs().max(), left, 0)
    turned = query.unflatten(3, (frequencies, folded)).permute(0, 2, 3, 1, 4).flatten(3)
    kept = torch.einsum("dhfn,fn->dhfn", turned, back.conj())
    kept = kept.unflatten(3, (groups, folded)).sum(dim=4).permute(0, 3, 1, 2).flatten(1, 2)
    rest = left.unflatten(2, (groups, folded)).transpose(1, 2).flatten(2)
    still = maps.key[:, heads, : maps.key.shape[2] - rotated]
    return RotarySlice(
        key=_unpair(own),
        query=_unpair(kept),
        rest=torch.cat((still, _unpair(rest)), dim=2),
    )


def _pair(heads: Tensor, rotated: int) -> Complex[Tensor, "inputs heads frequencies"]:
    """Return the rotated channels as complex numbers; the first half holds the real parts."""
    first, second = heads[..., -rotated:].chunk(2, dim=-1)
    return torch.complex(first.contiguous(), second.contiguous())


def _unpair(numbers: Tensor) -> Tensor:
    return torch.cat((numbers.real, numbers.imag), dim=-1)
