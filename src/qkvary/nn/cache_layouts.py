"""What a cache keeps of a token, and how key and value are made of it when they are read.

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
"""The rotation of all stored keys, made when it is asked for; none where nothing is rotated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """What a layer knows of the tokens of a call."""

    x: Tensor
    """Its input, [batch, tokens, d_model]."""
    sources: Parts
    """What its roles read, cut into heads, before rotation."""
    rotation: Rotation | None
    """By the positions of the tokens; none where nothing is rotated."""


@runtime_checkable
class CacheLayoutCodec(Protocol):
    """How entries are made of new tokens and read back."""

    def write(self, new: NewTokens, /) -> Parts:
        """Entries of new tokens, each [batch, heads, tokens, width]."""
        ...

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Key, rotated where the layer rotates, and value of all stored tokens."""
        ...


@dataclass(frozen=True, slots=True)
class SourcesCodec:
    """Distinct sources before rotation (P1 of a K=V layer; exact in every dtype)."""

    config: AttentionConfig

    def write(self, new: NewTokens, /) -> Parts:
        """The sources themselves."""
        return {source: new.sources[source] for source in self.config.variant.cached}

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Rotate the keys now."""
        return rotate_roles(self.config, stored, make_rotation())


@dataclass(frozen=True, slots=True)
class RotatedCodec:
    """What the softmax reads, each tensor once."""

    config: AttentionConfig

    def write(self, new: NewTokens, /) -> Parts:
        """The rotated key, and the value where it is another tensor."""
        key, value = rotate_roles(self.config, new.sources, new.rotation)
        if needs_slice(self.config):
            width = self.config.position.rotary_dim(self.config.size_per_head)
            return {"value": value, "slice": key[..., -width:]}
        return (
            {"key": key} if len(self.config.variant.cached) == 1 else {"key": key, "value": value}
        )

    def read(self, stored: Parts, _: MakeRotation, /) -> Roles:
        """Put the key together where it is stored in parts."""
        if needs_slice(self.config):
            value, turned = stored["value"], stored["slice"]
            still = value[..., : value.shape[-1] - turned.shape[-1]]
            return torch.cat((still, turned), dim=-1), value
        return stored["key"], stored.get("value", stored["key"])


@dataclass(frozen=True, slots=True)
class SplitCodec:
    """Key and value apart, whatever they read."""

    config: AttentionConfig

    def write(self, new: NewTokens, /) -> Parts:
        """The rotated key and the value."""
        key, value = rotate_roles(self.config, new.sources, new.rotation)
        return {"key": key, "value": value}

    def read(self, stored: Parts, _: MakeRotation, /) -> Roles:
        """As they are."""
        return stored["key"], stored["value"]


@dataclass(frozen=True, slots=True)
class InputCodec:
    """The layer input, of which sources are made again whenever they are read."""

    config: AttentionConfig
    projections: Projections

    def write(self, new: NewTokens, /) -> Parts:
        """The input, as one head."""
        return {IDENTITY: new.x[:, None]}

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Project and rotate again."""
        x = stored[IDENTITY].squeeze(1)
        cached: tuple[Source, ...] = self.config.variant.cached
        sources: Parts = {source: self._project(source, x) for source in cached}
        return rotate_roles(self.config, sources, make_rotation())

    def _project(self, source: Source, x: Tensor) -> Tensor:
        flat = self.projections[source](x) if source in self.projections else x
        return split_heads(flat, self.config.heads(source))


@dataclass(frozen=True, slots=True)
class LatentCodec:
    """Of each low-rank source ``x A^T``, and ``B`` applied whenever it is read.

    Not absorbed: query and output are left as they are, and key and value are made in every step.
    """

    config: AttentionConfig
    projections: Projections

    def write(self, new: NewTokens, /) -> Parts:
        """Latents as one head, other sources as they are."""
        return {source: self._project_down(source, new) for source in self.config.variant.cached}

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Widen what is narrow and rotate."""
        cached: tuple[Source, ...] = self.config.variant.cached
        sources: Parts = {source: self._project_up(source, stored[source]) for source in cached}
        return rotate_roles(self.config, sources, make_rotation())

    def _project_down(self, source: Source, new: NewTokens) -> Tensor:
        if self.config.latent(source) is None:
            return new.sources[source]
        return self.projections[source].project_down(new.x)[:, None]

    def _project_up(self, source: Source, entries: Tensor) -> Tensor:
        if self.config.latent(source) is None:
            return entries
        flat = self.projections[source].project_up(entries.squeeze(1))
        return split_heads(flat, self.config.heads(source))


def needs_slice(config: AttentionConfig) -> bool:
    """Whether the softmax reads one tensor turned as key and as it is as value."""
    sharing = config.variant.sharing
    turned = config.variant.positions == "rotary"
    return turned and sharing.key == sharing.value and config.position.value_rope == "none"


def make_codec(
    layout: CacheLayout, config: AttentionConfig, projections: Projections
) -> CacheLayoutCodec:
    """How a layer writes and reads entries of a layout."""
    if layout in ("input", "latent"):
        return (InputCodec if layout == "input" else LatentCodec)(config, projections)
    kinds: dict[str, Callable[[AttentionConfig], CacheLayoutCodec]] = {
        "sources": SourcesCodec,
        "rotated": RotatedCodec,
        "split": SplitCodec,
    }
    return kinds[layout](config)


def rotate_roles(config: AttentionConfig, sources: Parts, rotation: Rotation | None) -> Roles:
    """Key and value as the softmax reads them, from their sources."""
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
