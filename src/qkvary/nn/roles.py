"""The roles of a layer: what is stored of their sources, and how roles are made from that.

Between the projection of a source and the role that reads it stand the role terms of
``arch.terms``: a norm, a latent that is expanded, a rotation. Knows these; does not know scores or
caches.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.sharing import KEY_ROPE, Source
from qkvary.nn.initializer import Initializer
from qkvary.nn.linear import is_plain
from qkvary.nn.norms import HeadNorm
from qkvary.nn.positions import Rotation
from qkvary.nn.projections import make_projection, make_sources, project_together, split_heads

Sources = Mapping[str, Float[Tensor, "batch _ tokens _"]]


class Roles(NamedTuple):
    """Key and value of the stored tokens, as the softmax reads them."""

    key: Float[Tensor, "batch kv_heads tokens head_dim"]
    """The key, rotated where the layer rotates it."""
    value: Float[Tensor, "batch kv_heads tokens head_dim"]
    """The value; the key itself where one tensor serves both."""
    rope: Float[Tensor, "batch 1 tokens rope_dim"] | None = None
    """The rotated key of decoupled positions."""


class Heads(NamedTuple):
    """Query, key and value of a call."""

    query: Float[Tensor, "batch heads queries head_dim"]
    """The query."""
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    """The key."""
    value: Float[Tensor, "batch kv_heads keys head_dim"]
    """The value."""
    query_rope: Float[Tensor, "batch heads queries rope_dim"] | None
    """The rotated query of decoupled positions."""
    key_rope: Float[Tensor, "batch 1 keys rope_dim"] | None
    """The rotated key of decoupled positions."""
    rotation: Rotation | None
    """The rotation at the positions of the queries."""
    is_latent: bool
    """Whether key and value are the latent that they are made of, and the query meets it."""


class Latent(nn.Module):
    """Key and value are made of one latent c by a matrix each: ``k = c B_k, v = c B_v``.

    With ``kv-norm`` and decoupled positions this is multi-head latent attention. A layer without
    it that shares key and value is the same with fixed matrices, which pick a head's own block.

    Source: DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config
        rank, width = config.width(config.variant.sharing.key), config.kv_width
        self.key = make_projection(rank, width, bias=False)
        self.value = make_projection(rank, width, bias=False)

    def initialize(self, initializer: Initializer, init: Initialization, /) -> None:
        """Draw both as second halves of low-rank projections, which keep the deviation."""
        for name, part in (("key", self.key), ("value", self.value)):
            rank = part.weight.shape[1]
            initializer.weight(f"latent.{name}.weight", part.weight, init, 1.0 / math.sqrt(rank))

    def expand(
        self, latent: Float[Tensor, "batch 1 tokens rank"]
    ) -> tuple[
        Float[Tensor, "batch kv_heads tokens head_dim"],
        Float[Tensor, "batch kv_heads tokens head_dim"],
    ]:
        """Return key and value."""
        heads = self.config.num_kv_heads
        key, value = project_together(latent.squeeze(1), [self.key, self.value])
        return split_heads(key, heads), split_heads(value, heads)

    @property
    def can_absorb(self) -> bool:
        """Whether the two matrices are all that makes key and value of the latent."""
        return is_plain(self.key) and is_plain(self.value)

    def absorb(
        self, query: Float[Tensor, "batch heads queries head_dim"]
    ) -> Float[Tensor, "batch heads queries rank"]:
        """Return queries whose products with the latent are those with the keys: ``q B_k^T``."""
        return _multiply_groups(query, self._split(self.key))

    def restore(
        self, mixed: Float[Tensor, "batch heads queries rank"]
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Return the mixed values of mixed latents: ``m B_v``."""
        return _multiply_groups(mixed, self._split(self.value).mT)

    def _split(self, part: nn.Module) -> Float[Tensor, "kv_heads head_dim rank"]:
        return part.get_parameter("weight").unflatten(0, (self.config.num_kv_heads, -1))


@dataclass(frozen=True, slots=True)
class RoleMaker:
    """Makes what a layer stores from its input, and key and value from what is stored.

    A latent stands in the place of key and value until the layer expands it.
    """

    config: AttentionConfig
    """The layer."""
    projections: Mapping[Source, nn.Module]
    """Its learned projections."""
    norm: HeadNorm | None = None
    """The norm of the tensor that the key reads, and the value if it shares that."""
    latent: Latent | None = None
    """The up-projections of a latent."""

    def make_stored(self, x: Float[Tensor, "batch tokens d_model"]) -> Sources:
        """Return the sources that a cache keeps, as it keeps them."""
        return self.normalise(
            make_sources(x, self.config.variant.cached, self.projections, self.config)
        )

    def normalise(self, sources: Sources, names: Collection[str] | None = None) -> Sources:
        """Return sources with the norm of the one that the key reads.

        Args:
            sources: As they were projected.
            names: Those that were not normalised yet; by default all.
        """
        shared = self.config.variant.sharing.key
        if self.norm is None or shared not in (sources if names is None else names):
            return sources
        return {**sources, shared: self.norm.normalise(sources[shared])}

    def rotate(self, stored: Sources, rotation: Rotation | None) -> Roles:
        """Return key and value from what is stored of their sources."""
        sharing = self.config.variant.sharing
        key, value = stored[sharing.key], stored[sharing.value]
        if rotation is None:
            return Roles(key, value)
        if KEY_ROPE in stored:
            return Roles(key, value, rotation.rotate(stored[KEY_ROPE]))
        return Roles(*rotation.rotate_roles(key, value))

    def expand(self, roles: Roles) -> Roles:
        """Return key and value of a latent, where they are made of one."""
        if self.latent is None:
            return roles
        return Roles(*self.latent.expand(roles.key), roles.rope)


def _multiply_groups(
    heads: Float[Tensor, "batch heads queries inner"],
    matrices: Float[Tensor, "kv_heads inner outer"],
) -> Float[Tensor, "batch heads queries outer"]:
    """Multiply the heads of each group with the matrix of the group."""
    return (heads.unflatten(1, (matrices.shape[0], -1)) @ matrices[:, None]).flatten(1, 2)
