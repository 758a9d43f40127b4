"""Key and value of a layer: what is stored of their sources, and how they are made of that.

Between the projection of a source and the role that reads it stand the layer's own terms: a norm,
a latent that is expanded, a rotation. Knows these; does not know queries, scores or caches.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.sharing import KEY_ROPE, Source
from qkvary.nn.positions import Rotation
from qkvary.nn.projections import make_sources
from qkvary.nn.terms import KeyValueNorm, Latent

Sources = Mapping[str, Float[Tensor, "batch _ tokens _"]]


class Roles(NamedTuple):
    """Key and value of the stored tokens, as the softmax reads them."""

    key: Float[Tensor, "batch kv_heads tokens head_dim"]
    """The key, rotated where the layer rotates it."""
    value: Float[Tensor, "batch kv_heads tokens head_dim"]
    """The value; the key itself where one tensor serves both."""
    rope: Float[Tensor, "batch 1 tokens rope_dim"] | None = None
    """The rotated key of decoupled positions."""


@dataclass(frozen=True, slots=True)
class RoleMaker:
    """Makes what a layer stores of its input, and key and value of what is stored."""

    config: AttentionConfig
    """The layer."""
    projections: Mapping[Source, nn.Module]
    """Its learned projections."""
    norm: KeyValueNorm | None = None
    """The norm of the tensor that key and value share."""
    latent: Latent | None = None
    """The up-projections of a latent."""

    def make_stored(self, x: Float[Tensor, "batch tokens d_model"]) -> Sources:
        """Return the sources that a cache keeps, as it keeps them."""
        return self.normalise(
            make_sources(x, self.config.variant.cached, self.projections, self.config)
        )

    def normalise(self, sources: Sources, names: Collection[str] | None = None) -> Sources:
        """Return sources with the norm of those that key and value share.

        Args:
            sources: As they were projected.
            names: Those that were not normalised yet; by default all.
        """
        shared = self.config.variant.sharing.key
        if self.norm is None or shared not in (sources if names is None else names):
            return sources
        return {**sources, shared: self.norm.normalise(sources[shared])}

    def make(self, stored: Sources, rotation: Rotation | None) -> Roles:
        """Return key and value as the softmax reads them, from what is stored of their sources."""
        return self.expand(self.rotate(stored, rotation))

    def expand(self, roles: Roles) -> Roles:
        """Return key and value of a latent, where they are made of one."""
        if self.latent is None:
            return roles
        return Roles(*self.latent.expand(roles.key), roles.rope)

    def rotate(self, stored: Sources, rotation: Rotation | None) -> Roles:
        """Return key and value as :meth:`make`, but a latent as it is in the place of both."""
        sharing = self.config.variant.sharing
        key, value = stored[sharing.key], stored[sharing.value]
        if rotation is None:
            return Roles(key, value)
        if KEY_ROPE in stored:
            return Roles(key, value, rotation.rotate(stored[KEY_ROPE]))
        return Roles(*rotation.rotate_roles(key, value))
