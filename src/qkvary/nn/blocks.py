"""A transformer block: attention and feed-forward, each with residual, norm and dropout."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig
from qkvary.nn.attention import make_attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.feed_forward import FeedForward
from qkvary.nn.layout import Layout


def make_norm(d_model: int, config: BlockConfig) -> nn.Module:
    """LayerNorm, RMSNorm or nothing, as the configuration says."""
    if config.norm == "none":
        return nn.Identity()
    if config.norm == "rmsnorm":
        return nn.RMSNorm(d_model, eps=config.norm_eps)
    return nn.LayerNorm(d_model, eps=config.norm_eps, bias=config.bias)


class Block(nn.Module):
    """Pre-norm ``x + f(norm(x))`` or post-norm ``norm(x + f(x))``, for f = attention, then FFN.

    With the placement ``stream``, ``norm(x) + f(norm(x))``. The sum is left out around a sublayer
    without a skip.
    """

    def __init__(self, attention: AttentionConfig, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = make_attention(attention)
        self.attention_norm = make_norm(attention.d_model, config)
        self.feed_forward = FeedForward(attention.d_model, config)
        self.feed_forward_norm = make_norm(attention.d_model, config)

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        *,
        layout: Layout,
        cache: LayerCache | None = None,
        kernel: str | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Apply both sublayers."""
        if self.config.norm_placement.startswith("pre"):
            x = self._attend(x, self.attention_norm(x), layout, cache, kernel)
            return self._feed(x, self.feed_forward_norm(x))
        if self.config.norm_placement == "stream":
            x = self.attention_norm(x)
            x = self.feed_forward_norm(self._attend(x, x, layout, cache, kernel))
            return self._feed(x, x)
        x = self.attention_norm(self._attend(x, x, layout, cache, kernel))
        return self.feed_forward_norm(self._feed(x, x))

    def attention_input(
        self, x: Float[Tensor, "batch queries d_model"]
    ) -> Float[Tensor, "batch queries d_model"]:
        """Return what the attention layer reads when the block reads ``x``."""
        return x if self.config.norm_placement.startswith("post") else self.attention_norm(x)

    def _attend(
        self,
        x: Tensor,
        read: Tensor,
        layout: Layout,
        cache: LayerCache | None,
        kernel: str | None,
    ) -> Tensor:
        mixed = self._drop(self.attention(read, layout=layout, cache=cache, kernel=kernel))
        return x + mixed if self.config.has_attention_skip else mixed

    def _feed(self, x: Tensor, read: Tensor) -> Tensor:
        change = self._feed_forward(read)
        return x + change if self.config.has_feed_forward_skip else change

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def _feed_forward(self, x: Tensor) -> Tensor:
        own = self.config.feed_forward_dropout
        rate = self.config.dropout if own is None else own
        return F.dropout(self.feed_forward(x), rate, self.training)
