"""The scores of attention as a value that terms change before anything is multiplied.

Knows query, key and what is added to their products. Does not know what is done with scores.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.nn.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """``(gain * scale (q k^T + rope) + key_bias + pair_bias) / temperature``."""

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    scale: float
    """Factor of the products of query and key."""
    layout: Layout
    """Positions and masks of the call."""
    query_rope: Float[Tensor, "batch heads queries rope_dim"] | None = None
    """The rotated queries of decoupled positions, whose products with the keys' are added."""
    key_rope: Float[Tensor, "batch 1 keys rope_dim"] | None = None
    """The rotated key of decoupled positions, shared by all heads."""
    products: Float[Tensor, "batch heads queries keys"] | None = None
    """``scale q k^T`` where a term has changed it entry by entry, else not computed."""
    gain: Float[Tensor, "sets 1 1"] | None = None
    """A learned factor of the products."""
    key_bias: Float[Tensor, "rows keys sets"] | None = None
    """A bias per key."""
    pair_bias: Float[Tensor, "rows heads queries keys"] | None = None
    """A bias per pair of query and key."""
    temperature: float = 1.0
    """The divisor of everything."""
    log_decay: Float[Tensor, " kv_heads"] | None = None
    """The logarithm of the factor of the weights per token of distance, in linear attention."""

    def fold(self) -> tuple[Tensor, Tensor, float]:
        """Return query, key and scale whose products are the scores without the pair bias."""
        scale, (query, key) = self.scale / self.temperature, self._join()
        if self.gain is None and self.key_bias is None:
            return query, key, scale
        query = query * (scale if self.gain is None else self.gain * scale)
        if self.key_bias is not None:
            query, key = append_key_bias(query, key, self.key_bias, 1.0 / self.temperature)
        return query, key, 1.0

    def multiply(self) -> Float[Tensor, "batch heads queries keys"]:
        """Return a new tensor of the scores without the pair bias."""
        if self.products is None:
            query, key, scale = self.fold()
            return content_scores(query if scale == 1.0 else query * scale, key)
        scores = self.products if self.gain is None else self.products * self.gain
        if self.key_bias is not None:
            scores = scores + self.key_bias.mT.unsqueeze(-2)
        return scores / self.temperature

    def take_rope(self) -> "tuple[Scores, Float[Tensor, 'batch heads queries keys'] | None]":
        """Return the scores without decoupled positions, and the products of these.

        Apart, the key can be the value, and the rotary key is not copied for each KV head. They are
        summed up in single precision at least.
        """
        if self.query_rope is None or self.key_rope is None:
            return self, None
        wide = torch.promote_types(self.query.dtype, torch.float32)
        query = self.query_rope.to(wide) * (self.scale / self.temperature)
        products = content_scores(query, self.key_rope.to(wide))
        return replace(self, query_rope=None, key_rope=None), products

    def _join(self) -> tuple[Tensor, Tensor]:
        """Return query and key with the channels of decoupled positions appended."""
        if self.query_rope is None or self.key_rope is None:
            return self.query, self.key
        rope = self.key_rope.expand(-1, self.key.shape[1], -1, -1)
        query = torch.cat((self.query, self.query_rope), dim=-1)
        return query, torch.cat((self.key, rope), dim=-1)

    def cooled_pair_bias(self) -> Float[Tensor, "rows heads queries keys"] | None:
        """Return the pair bias, divided by the temperature."""
        if self.pair_bias is None or self.temperature == 1.0:
            return self.pair_bias
        return self.pair_bias / self.temperature


def content_scores(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Float[Tensor, "batch heads queries keys"]:
    """Return the products q . k of each query head with the key head of its group."""
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if heads == kv_heads:
        return query @ key.mT
    folded = query.reshape(batch, kv_heads, heads // kv_heads * queries, query.shape[-1])
    return (folded @ key.mT).view(batch, heads, queries, keys)


def append_key_bias(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    bias: Float[Tensor, "rows keys sets"],
    factor: float,
) -> tuple[
    Float[Tensor, "batch heads queries extended_dim"],
    Float[Tensor, "batch kv_heads keys extended_dim"],
]:
    """Extend query and key so that their products get ``factor`` times a bias of the key.

    [q, c] . [k, g] = q . k + c g, so that the bias needs no pass over the map of scores, neither
    forward nor backward. It takes one channel, or one for each query head of a group where heads
    have their own biases.
    """
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    channels = max(1, bias.shape[-1] // kv_heads)
    own = torch.eye(channels, dtype=query.dtype, device=query.device) * factor
    constant = own[:, None].expand(batch, heads // channels, channels, queries, channels)
    added = bias.unflatten(-1, (-1, channels)).transpose(1, 2)
    added = added.expand(batch, kv_heads, keys, channels)
    return torch.cat((query, constant.flatten(1, 2)), dim=-1), torch.cat((key, added), dim=-1)
