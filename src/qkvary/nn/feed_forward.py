"""The feed-forward network of a block."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import Initialization
from qkvary.arch.networks import BlockConfig
from qkvary.nn.initializer import Initializer
from qkvary.nn.linear import apply


class FeedForward(nn.Module):
    """``down(activation(dropout(up(x))))``; with a gate ``down(activation(gate(x)) * up(x))``."""

    def __init__(self, d_model: int, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        bias = config.has_feed_forward_bias
        self.up = nn.Linear(d_model, config.d_ff, bias=bias)
        self.gate = nn.Linear(d_model, config.d_ff, bias=bias) if config.is_gated else None
        self.down = nn.Linear(config.d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply to every token."""
        inner = F.dropout(apply(self.up, x), self.config.inner_dropout, self.training)
        if self.gate is not None:
            return apply(self.down, self._activate(apply(self.gate, x)) * inner)
        return apply(self.down, self._activate(inner))

    def _activate(self, inner: Float[Tensor, "*batch d_ff"]) -> Float[Tensor, "*batch d_ff"]:
        kind = self.config.activation
        if kind in ("relu", "swiglu"):
            return F.relu(inner) if kind == "relu" else F.silu(inner)
        return F.gelu(inner, approximate="tanh" if kind.endswith("-tanh") else "none")

    def initialize(self, initializer: Initializer, init: Initialization) -> None:
        """Draw the matrices; under ``normal`` the last has its own deviation."""
        initializer.linear("up", self.up, init)
        if self.gate is not None:
            initializer.linear("gate", self.gate, init)
        initializer.linear(
            "down", self.down, init, init.output_std if init.scheme == "normal" else None
        )
