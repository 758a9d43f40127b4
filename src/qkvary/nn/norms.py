"""Norms that torch has not: a gain of one more than what is learned, and those of heads."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.nn.initializer import Initializer
from qkvary.nn.projections import split_heads


class RMSNormPlusOne(nn.RMSNorm):
    """RMSNorm whose gain is one more than its weight: ``x / rms(x) * (1 + w)``.

    Source: Gemma Team 2024, as implemented in transformers 5.23.
    """

    def reset_parameters(self) -> None:
        """Start with a gain of one."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Normalise."""
        return _norm(x, self.weight, self.eps or 0.0, adds_one=True)


class HeadNorm(nn.Module):
    """RMSNorm of a query or a key before any rotation: ``c / rms(c) * g``.

    Each head by itself, with one gain for all heads, or all heads together. Where key and value
    share a tensor, its norm is part of what is stored; a query that reads the same projection reads
    it before.

    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters"; Qwen Team
    2025, "Qwen3" (each head); OLMo Team 2024, "2 OLMo 2 Furious" (all heads); DeepSeek-AI 2024,
    "DeepSeek-V2", section 2.1 (the norm of the latent).
    """

    def __init__(
        self, width: int, *, eps: float, is_wide: bool = True, adds_one: bool = False
    ) -> None:
        """Create the gain.

        Args:
            width: Channels of a head, or of all heads together.
            eps: The epsilon.
            is_wide: Whether all heads are normalised together.
            adds_one: Whether a channel is multiplied by one more than its learned number.
        """
        super().__init__()
        self.eps, self.is_wide, self.adds_one = eps, is_wide, adds_one
        self.weight = nn.Parameter(torch.empty(width))

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Start with a gain of one."""
        nn.init.constant_(self.weight, 0.0 if self.adds_one else 1.0)

    @property
    def gain(self) -> Float[Tensor, " width"]:
        """Return what a channel is multiplied by."""
        return self.weight + 1 if self.adds_one else self.weight

    def normalise(
        self, heads: Float[Tensor, "batch heads tokens channels"]
    ) -> Float[Tensor, "batch heads tokens channels"]:
        """Divide by the root mean square, and multiply by the gain."""
        joined = heads.transpose(1, 2).flatten(2) if self.is_wide else heads
        normed = _norm(joined, self.weight, self.eps, adds_one=self.adds_one)
        return split_heads(normed, heads.shape[1]) if self.is_wide else normed


def _norm(x: Tensor, weight: Tensor, eps: float, *, adds_one: bool) -> Tensor:
    if not adds_one:
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)
    # The sum keeps what is learned in single precision at least.
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, 1.0 + weight.to(wide), eps).to(x.dtype)


def make_head_norm(config: AttentionConfig, width: int) -> HeadNorm | None:
    """Return the norm of a query or key of all these channels, where the variant has norms."""
    kind, scale = config.variant.head_norm, config.scale
    if kind == "none":
        return None
    is_wide = kind == "qk-norm-wide"
    return HeadNorm(
        width if is_wide else config.size_per_head,
        eps=scale.norm_eps,
        is_wide=is_wide,
        adds_one=scale.norm_adds_one,
    )
