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
from qkvary.nn.norms import RMSNormPlusOne


def make_norm(d_model: int, config: BlockConfig) -> nn.Module:
    """LayerNorm, RMSNorm or nothing, as the configuration says."""
    if config.norm == "none":
        return nn.Identity()
    if config.norm == "layernorm":
        return nn.LayerNorm(d_model, eps=config.norm_eps, bias=config.bias)
    kind = nn.RMSNorm if config.norm == "rmsnorm" else RMSNormPlusOne
    return kind(d_model, eps=config.norm_eps)


class Block(nn.Module):
    """Pre-norm ``x + f(norm(x))`` or post-norm ``norm(x + f(x))``, for f = attention, then FFN.

    With the placement ``stream``, ``norm(x) + f(norm(x))``; with ``output``, ``x + norm(f(x))``;
    with ``sandwich``, ``x + norm(f(norm(x)))``. The sum is left out around a sublayer without a
    skip. Parallel sublayers are ``x + f(norm(x)) + g(norm(x))``.
    """

    def __init__(self, attention: AttentionConfig, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.attention = make_attention(attention)
        self.attention_norm = make_norm(attention.d_model, config)
        self.feed_forward = FeedForward(attention.d_model, config)
        self.feed_forward_norm = make_norm(attention.d_model, config)
        has_both = config.norm_placement == "sandwich"
        self.attention_output_norm = make_norm(attention.d_model, config) if has_both else None
        self.feed_forward_output_norm = make_norm(attention.d_model, config) if has_both else None

    def forward(
        self,
        x: Float[Tensor, "batch queries d_model"],
        *,
        layout: Layout,
        cache: LayerCache | None = None,
        kernel: str | None = None,
    ) -> Float[Tensor, "batch queries d_model"]:
        """Apply both sublayers."""
        if self.config.norm_placement == "stream":
            x = self.attention_norm(x)
            x = self.feed_forward_norm(self._attend(x, x, layout, cache, kernel))
            return self._feed(x, x)
        if self.config.norm_placement.startswith("post"):
            x = self.attention_norm(self._attend(x, x, layout, cache, kernel))
            return self.feed_forward_norm(self._feed(x, x))
        before = x
        x = self._attend(x, self.attention_input(x), layout, cache, kernel)
        read = before if self.config.parallel else x
        if self.config.norm_placement != "output":
            read = self.feed_forward_norm(read)
        return self._feed(x, read)

    def attention_input(
        self, x: Float[Tensor, "batch queries d_model"]
    ) -> Float[Tensor, "batch queries d_model"]:
        """Return what the attention layer reads when the block reads ``x``."""
        is_read_plain = self.config.norm_placement.startswith(("post", "output"))
        return x if is_read_plain else self.attention_norm(x)

    def _attend(
        self,
        x: Tensor,
        read: Tensor,
        layout: Layout,
        cache: LayerCache | None,
        kernel: str | None,
    ) -> Tensor:
        mixed = self.attention(read, layout=layout, cache=cache, kernel=kernel)
        norms = (self.attention_norm, self.attention_output_norm)
        mixed = self._drop(self._norm_output(mixed, *norms))
        return x + mixed if self.config.has_attention_skip else mixed

    def _feed(self, x: Tensor, read: Tensor) -> Tensor:
        change = self._feed_forward(read)
        return x + change if self.config.has_feed_forward_skip else change

    def _norm_output(self, change: Tensor, norm: nn.Module, own: nn.Module | None) -> Tensor:
        if own is not None:
            return own(change)
        return norm(change) if self.config.norm_placement == "output" else change

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)

    def _feed_forward(self, x: Tensor) -> Tensor:
        own = self.config.feed_forward_dropout
        rate = self.config.dropout if own is None else own
        norms = (self.feed_forward_norm, self.feed_forward_output_norm)
        return F.dropout(self._norm_output(self.feed_forward(x), *norms), rate, self.training)
