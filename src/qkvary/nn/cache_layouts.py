"""Layouts of the cache: the tensors stored per token, and key and value made from them.

A layout never changes results beyond rounding. For a latent, a layout returns the latent itself;
only ``split`` stores the key and value made from it. Knows sources and rotations, but neither the
storage nor the softmax.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheLayout
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, Source
from qkvary.nn.cache import LayerCache, blank_padding
from qkvary.nn.layout import Layout, Rotation
from qkvary.nn.projections import LowRank, RoleMaker, Roles, split_heads
from qkvary.nn.projections import Sources as Parts

MakeRotation = Callable[[], Rotation | None]
"""Makes the rotation of all stored keys; ``None`` for layers without rotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """The new tokens of a call, as a layer sees them."""

    x: Tensor
    """The layer's input, [batch, tokens, d_model]."""
    sources: Parts
    """The sources of the layer's roles as the cache stores them: cut into heads, before
    rotation."""
    rotation: Rotation | None
    """The rotation at the positions of the tokens; ``None`` if nothing is rotated."""


@dataclass(frozen=True, slots=True)
class SourceCodec:
    """Distinct sources before rotation (P1 of a K=V layer; exact in every dtype).

    With latents, a low-rank source is stored as ``x A^T``, and ``B`` is applied whenever it is
    read. It is not absorbed: query and output are unchanged.
    """

    maker: RoleMaker
    has_latents: bool

    def write(self, new: NewTokens, /) -> Parts:
        """Return the sources; latents have one head."""
        maker = self.maker
        return {
            source: self._low_rank(source).project_down(new.x)[:, None]
            if self._is_latent(source)
            else new.sources[source]
            for source in maker.config.variant.cached
        }

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Expand latents and rotate the keys."""
        config, maker = self.maker.config, self.maker
        sources = dict(stored)
        latents: list[Source] = [*filter(self._is_latent, config.variant.cached)]
        for source in latents:
            flat = self._low_rank(source).project_up(stored[source].squeeze(1))
            sources[source] = split_heads(flat, config.heads(source))
        return maker.rotate(maker.normalise(sources, latents), make_rotation())

    def _is_latent(self, source: Source) -> bool:
        return self.has_latents and self.maker.config.latent(source) is not None

    def _low_rank(self, source: Source) -> LowRank:
        projection = self.maker.projections[source]
        if not isinstance(projection, LowRank):
            # All bad input is a ValueError.
            raise ValueError(  # noqa: TRY004
                f"expected a low-rank projection {source} for a cache of latents, got "
                f"{type(projection).__name__}; choose another layout of the cache"
            )
        return projection


@dataclass(frozen=True, slots=True)
class RoleCodec:
    """Stores the tensors that the softmax reads: each once, or key and value separately.

    A latent is stored once; key and value made from it are stored separately.
    """

    maker: RoleMaker
    is_split: bool

    def write(self, new: NewTokens, /) -> Parts:
        """Return the rotated key, and the value if it is another tensor."""
        config, sharing = self.maker.config, self.maker.config.variant.sharing
        roles = self.maker.rotate(new.sources, new.rotation)
        key, value, rope = self.maker.expand(roles) if self.is_split else roles
        if not self.is_split and needs_slice(config):
            return {"value": value, "slice": key[..., -config.rotated_channels :]}
        is_shared = not self.is_split and sharing.key == sharing.value
        parts = {"key": key} if is_shared else {"key": key, "value": value}
        return parts if rope is None else {**parts, KEY_ROPE: rope}

    def read(self, stored: Parts, _: MakeRotation, /) -> Roles:
        """Return the entries, joining a key that is stored in parts."""
        if "slice" in stored:
            value, rotated = stored["value"], stored["slice"]
            still = value[..., : value.shape[-1] - rotated.shape[-1]]
            return Roles(torch.cat((still, rotated), dim=-1), value)
        return Roles(stored["key"], stored.get("value", stored["key"]), stored.get(KEY_ROPE))


@dataclass(frozen=True, slots=True)
class InputCodec:
    """Stores the layer input, and projects it again whenever the cache is read."""

    maker: RoleMaker

    def write(self, new: NewTokens, /) -> Parts:
        """Return the input, as one head."""
        return {IDENTITY: new.x[:, None]}

    def read(self, stored: Parts, make_rotation: MakeRotation, /) -> Roles:
        """Project and rotate again."""
        maker = self.maker
        return maker.rotate(maker.make_stored(stored[IDENTITY].squeeze(1)), make_rotation())


CacheLayoutCodec = SourceCodec | RoleCodec | InputCodec
"""Turns new tokens into entries, each [batch, heads, tokens, width], and entries back into what the
layer reads."""


def needs_slice(config: AttentionConfig) -> bool:
    """Return whether one tensor is the key when rotated and the value when not."""
    sharing = config.variant.sharing
    turned = config.variant.positions == "rotary"
    return turned and sharing.key == sharing.value and config.position.value_rope == "none"


def make_codec(layout: CacheLayout, maker: RoleMaker) -> CacheLayoutCodec:
    """Return the codec of a layout, which writes and reads a layer's entries."""
    if layout == "input":
        return InputCodec(maker)
    if layout in ("sources", "latent"):
        return SourceCodec(maker, has_latents=layout == "latent")
    return RoleCodec(maker, is_split=layout == "split")


def store_roles(
    new: NewTokens,
    cache: LayerCache,
    layout: Layout,
    codec: CacheLayoutCodec,
    make_rotation: MakeRotation,
) -> Roles:
    """Store the new tokens, and return key and value of all tokens, in a layout."""
    entries, count = codec.write(new), new.x.shape[1]
    if cache.options.scales == "channel" and layout.attention_mask is not None:
        entries = blank_padding(entries, layout.attention_mask[:, layout.num_keys - count :])
    return codec.read(cache.append(entries), make_rotation)
