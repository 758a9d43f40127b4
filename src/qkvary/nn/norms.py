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

    In single precision at least, where the sum keeps what is learned.

    Source: Gemma Team 2024, as implemented in transformers 5.23.
    """

    def reset_parameters(self) -> None:
        """Start with a gain of one."""
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        """Normalise."""
        wide = torch.promote_types(x.dtype, torch.float32)
        gain = 1.0 + self.weight.to(wide)
        return F.rms_norm(x.to(wide), self.normalized_shape, gain, self.eps).to(x.dtype)


class HeadNorm(nn.Module):
    """RMSNorm of a query or a key, of each head by itself or of all heads together.

    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters"; Qwen Team
    2025, "Qwen3" (each head); OLMo Team 2024, "2 OLMo 2 Furious" (all heads).
    """

    def __init__(self, config: AttentionConfig, heads: int) -> None:
        """Create the gain.

        Args:
            config: The layer.
            heads: Heads of the query, or of the source of the key.
        """
        super().__init__()
        self.is_wide = config.variant.head_norm == "qk-norm-wide"
        width = config.size_per_head * (heads if self.is_wide else 1)
        kind = RMSNormPlusOne if config.head_norm.adds_one else nn.RMSNorm
        self.norm = kind(width, eps=config.head_norm.eps, device="meta")
        self.norm.weight = nn.Parameter(torch.empty(width))

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Start with a gain of one."""
        self.norm.reset_parameters()

    def normalise(
        self, heads: Float[Tensor, "batch heads tokens channels"]
    ) -> Float[Tensor, "batch heads tokens channels"]:
        """Divide by the root mean square, and multiply by the gain."""
        if not self.is_wide:
            return self.norm(heads)
        return split_heads(self.norm(heads.transpose(1, 2).flatten(2)), heads.shape[1])
