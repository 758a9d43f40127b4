"""The entries of a cache for a token, and how key and value are made from them.

A layout never changes results beyond rounding. Knows sources and rotations; does not know how
entries are stored, or what the softmax does with key and value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheLayout
from qkvary.arch.sharing import IDENTITY, Source
from qkvary.nn.cache import LayerCache, blank_padding
from qkvary.nn.layout import Layout
from qkvary.nn.positions import Rotation
from qkvary.nn.projections import Projection, split_heads

Parts = Mapping[str, Tensor]
Roles = tuple[Tensor, Tensor]
Projections = Mapping[Source, Projection]
"""The learned projections of a layer."""
MakeRotation = Callable[[], Rotation | None]
"""A function that makes the rotation of all stored keys; ``None`` for unrotated layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """The new tokens of a call, as a layer sees them."""

    x: Tensor
    """Its input, [batch, tokens, d_model]."""
    sources: Parts
    """The sources of its roles, cut into heads, before rotation."""
    rotation: Rotation | None
    """By the positions of the tokens; none where nothing is rotated."""


@runtime_checkable
class CacheLayoutCodec(Protocol):
    """Makes entries of new tokens and reads them back."""

    def write(self, new: NewTokens, /) -> Parts:
        """Return the entries of new tokens, each [batch, heads, tokens, width]."""
        ...

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Return key, rotated where the layer rotates, and value of all stored tokens."""
        ...


@dataclass(frozen=True, slots=True)
class SourceCodec:
    """Distinct sources before rotation (P1 of a K=V layer; exact in every dtype).

    With latents, a low-rank source is stored as ``x A^T``, and ``B`` is applied whenever it is
    read. It is not absorbed: query and output stay as they are.
    """

    config: AttentionConfig
    projections: Projections
    has_latents: bool

    def write(self, new: NewTokens, /) -> Parts:
        """Return the sources, latents as one head."""
        return {
            source: self.projections[source].project_down(new.x)[:, None]
            if self._is_latent(source)
            else new.sources[source]
            for source in self.config.variant.cached
        }

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Expand latents and rotate the keys."""
        sources = dict(stored)
        for source in filter(self._is_latent, self.config.variant.cached):
            flat = self.projections[source].project_up(stored[source].squeeze(1))
            sources[source] = split_heads(flat, self.config.heads(source))
        return rotate_roles(self.config, sources, make_rotation())

    def _is_latent(self, source: Source) -> bool:
        return self.has_latents and self.config.latent(source) is not None


@dataclass(frozen=True, slots=True)
class RoleCodec:
    """Stores the tensors that the softmax reads: each once, or key and value separately."""

    config: AttentionConfig
    is_split: bool

    def write(self, new: NewTokens, /) -> Parts:
        """Return the rotated key, and the value where it is another tensor."""
        config = self.config
        key, value = rotate_roles(config, new.sources, new.rotation)
        if not self.is_split and needs_slice(config):
            width = config.position.rotary_dim(config.size_per_head)
            return {"value": value, "slice": key[..., -width:]}
        is_shared = not self.is_split and len(config.variant.cached) == 1
        return {"key": key} if is_shared else {"key": key, "value": value}

    def read(self, stored: Parts, _: MakeRotation, /) -> Roles:
        """Put the key together where it is stored in parts."""
        if "slice" in stored:
            value, rotated = stored["value"], stored["slice"]
            still = value[..., : value.shape[-1] - rotated.shape[-1]]
            return torch.cat((still, rotated), dim=-1), value
        return stored["key"], stored.get("value", stored["key"])


@dataclass(frozen=True, slots=True)
class InputCodec:
    """The layer input, from which sources are made again whenever they are read."""

    config: AttentionConfig
    projections: Projections

    def write(self, new: NewTokens, /) -> Parts:
        """Return the input, as one head."""
        return {IDENTITY: new.x[:, None]}

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Project and rotate again."""
        x, sources = stored[IDENTITY].squeeze(1), dict[str, Tensor]()
        for source in self.config.variant.cached:
            flat = self.projections[source](x) if source in self.projections else x
            sources[source] = split_heads(flat, self.config.heads(source))
        return rotate_roles(self.config, sources, make_rotation())


def needs_slice(config: AttentionConfig) -> bool:
    """Return whether the softmax reads one tensor turned as key and as it is as value."""
    sharing = config.variant.sharing
    turned = config.variant.positions == "rotary"
    return turned and sharing.key == sharing.value and config.position.value_rope == "none"


def make_codec(
    layout: CacheLayout, config: AttentionConfig, projections: Projections
) -> CacheLayoutCodec:
    """Return how a layer writes and reads the entries of a layout."""
    if layout == "input":
        return InputCodec(config, projections)
    if layout in ("sources", "latent"):
        return SourceCodec(config, projections, has_latents=layout == "latent")
    return RoleCodec(config, is_split=layout == "split")


def rotate_roles(config: AttentionConfig, sources: Parts, rotation: Rotation | None) -> Roles:
    """Return key and value as the softmax reads them, from their sources."""
    sharing = config.variant.sharing
    key, value = sources[sharing.key], sources[sharing.value]
    return (key, value) if rotation is None else rotation.rotate_roles(key, value)


def store_roles(
    new: NewTokens,
    cache: LayerCache,
    layout: Layout,
    codec: CacheLayoutCodec,
    make_rotation: MakeRotation,
) -> Roles:
    """Store the new tokens, and return key and value of all tokens of a layout."""
    entries, count = codec.write(new), new.x.shape[1]
    if cache.options.scales == "channel" and layout.attention_mask is not None:
        entries = blank_padding(entries, layout.attention_mask[:, layout.num_keys - count :])
    return codec.read(cache.append(entries), make_rotation)
