"""The feed-forward network of a block."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from qkvary.arch.attention import Initialization
from qkvary.arch.networks import BlockConfig
from qkvary.nn.initializer import Initializer
from qkvary.nn.linear import apply


class FeedForward(nn.Module):
    """``down(activation(dropout(up(x))))``; SwiGLU is ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, d_model: int, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        bias = config.has_feed_forward_bias
        self.up = nn.Linear(d_model, config.d_ff, bias=bias)
        gated = config.activation == "swiglu"
        self.gate = nn.Linear(d_model, config.d_ff, bias=bias) if gated else None
        self.down = nn.Linear(config.d_ff, d_model, bias=bias)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """Apply to every token."""
        inner = F.dropout(apply(self.up, x), self.config.inner_dropout, self.training)
        if self.gate is not None:
            return apply(self.down, F.silu(apply(self.gate, x)) * inner)
        if self.config.activation == "relu":
            return apply(self.down, F.relu(inner))
        is_tanh = self.config.activation == "gelu-tanh"
        return apply(self.down, F.gelu(inner, approximate="tanh" if is_tanh else "none"))

    def initialize(self, initializer: Initializer, init: Initialization) -> None:
        """Draw the matrices; under ``normal`` the last has its own deviation."""
        initializer.linear("up", self.up, init)
        if self.gate is not None:
            initializer.linear("gate", self.gate, init)
        initializer.linear(
            "down", self.down, init, init.output_std if init.scheme == "normal" else None
        )
