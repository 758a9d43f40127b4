"""Layouts of the cache: which tensors are stored per token, and how they become key and value.

A layout never changes results beyond rounding. If key and value are made from a latent, a layout
returns the latent; only ``split`` stores and returns key and value.
"""

from typing import cast

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheLayout
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, Source
from qkvary.nn.cache import LayerCache
from qkvary.nn.layout import Layout, Rotation
from qkvary.nn.projections import LowRank, RoleMaker, Roles, Sources, split_heads
from qkvary.nn.shapes import Hidden


def store_and_read(
    maker: RoleMaker,
    cache: LayerCache,
    layout: Layout,
    x: Hidden,
    sources: Sources,
    rotation: Rotation | None,
) -> Roles:
    """Store any new tokens, and return the key and value of all tokens.

    Key and value of the new tokens are made from ``x``. ``sources`` are the normalised projections
    of ``x``, and ``rotation`` is the rotation for the positions.
    """
    config, kind = maker.config, cache.options.layout
    entries = _write(maker, kind, x, sources, rotation) if sources else {}
    if cache.options.scales == "channel" and layout.attention_mask is not None:
        # Padding would affect a quantisation scale. Multiplying by 0 fails if it is infinite.
        hidden = ~layout.attention_mask[:, layout.num_keys - x.shape[1] :][:, None, :, None]
        entries = {name: part.masked_fill(hidden, 0.0) for name, part in entries.items()}
    stored = cache.append(entries) if entries else cache.read()
    if kind in ("input", "sources", "latent"):
        if kind == "input":
            made = maker.project(stored[IDENTITY].squeeze(1), config.variant.cached)
        else:
            made: dict[str, Tensor] = {}
            for source, projection in _latents(maker, kind).items():
                flat = projection.project_up(stored[source].squeeze(1))
                made[source] = split_heads(flat, config.heads(source))
        key_rotation = layout.rotation(config, x.dtype, of_keys=True, tokens=cache.max_tokens)
        return maker.rotate({**stored, **maker.normalise(made)}, key_rotation)
    if "slice" in stored:
        value, rotated = stored["value"], stored["slice"]
        still = value[..., : value.shape[-1] - rotated.shape[-1]]
        return Roles(torch.cat((still, rotated), dim=-1), value)
    return Roles(stored["key"], stored.get("value", stored["key"]), stored.get(KEY_ROPE))


def _write(
    maker: RoleMaker, layout: CacheLayout, x: Tensor, sources: Sources, rotation: Rotation | None
) -> Sources:
    """Return the entries to store for new tokens. Inputs and latents are stored as one head."""
    config, sharing = maker.config, maker.config.variant.sharing
    if layout == "input":
        return {IDENTITY: x[:, None]}
    if layout in ("sources", "latent"):
        latents = _latents(maker, layout)
        return {
            source: latents[source].project_down(x)[:, None]
            if source in latents
            else sources[source]
            for source in config.variant.cached
        }
    key, value, rope = roles = maker.rotate(sources, rotation)
    if layout == "split":
        key, value, rope = maker.expand(roles)
    elif needs_slice(config):
        return {"value": value, "slice": key[..., -config.rotated_channels :]}
    is_shared = layout == "rotated" and sharing.key == sharing.value
    parts = {"key": key} if is_shared else {"key": key, "value": value}
    return parts if rope is None else {**parts, KEY_ROPE: rope}


def needs_slice(config: AttentionConfig) -> bool:
    """Return whether the value is the key before rotation, so that one tensor can store both."""
    sharing = config.variant.sharing
    is_rotated = config.variant.positions == "rotary"
    return is_rotated and sharing.key == sharing.value and config.position.value_rope == "none"


def _latents(maker: RoleMaker, layout: CacheLayout) -> dict[Source, LowRank]:
    """Return the low-rank projections whose inner channels the layout stores."""
    if layout != "latent":
        return {}
    return {
        source: cast("LowRank", maker.projections[source])
        for source in maker.config.variant.cached
        if maker.config.latent(source) is not None
    }
