"""Initial values: every parameter is drawn from its own generator.

The generator is seeded by the network's seed and the parameter's name. So two variants with the
same seed start with equal values in every parameter that both have, and can be compared in pairs.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from qkvary.arch.attention import Initialization


class Initializer:
    """Draws the parameters of one module, in place."""

    def __init__(self, seed: int, prefix: str) -> None:
        """Store the seed, and the name that the module has in the network."""
        self.seed, self.prefix = seed, prefix

    def weight(self, name: str, parameter: Tensor, init: Initialization, std: float) -> None:
        """Draw a weight matrix with deviation ``std``, normal or uniform as ``init`` says."""
        if init.scheme == "normal":
            self.draw(name, parameter, std=std)
        else:
            self.draw(name, parameter, bound=math.sqrt(3.0) * std)

    def bias(self, name: str, parameter: Tensor | None, init: Initialization, fan_in: int) -> None:
        """Draw a bias as torch's layers do, or set it to zero, as the scheme says."""
        if parameter is None:
            return
        if init.scheme in ("torch", "xavier-matrices"):
            self.draw(name, parameter, bound=1.0 / math.sqrt(fan_in))
        else:
            nn.init.zeros_(parameter)

    def linear(
        self, name: str, layer: nn.Linear | None, init: Initialization, std: float | None = None
    ) -> None:
        """Initialise a linear layer by the scheme, or with a given standard deviation."""
        if layer is None:
            return
        chosen = init.weight_std(layer.in_features, layer.out_features) if std is None else std
        self.weight(f"{name}.weight", layer.weight, init, chosen)
        self.bias(f"{name}.bias", layer.bias, init, layer.in_features)

    def table(self, name: str, parameter: Tensor | None, init: Initialization) -> None:
        """Initialise an embedding table: N(0, 1) in the scheme ``torch``, else as a matrix."""
        if parameter is None:
            return
        if init.scheme == "torch":
            self.draw(name, parameter, std=1.0)
        else:
            self.weight(name, parameter, init, init.weight_std(*parameter.shape))

    @torch.no_grad()
    def draw(
        self, name: str, parameter: Tensor, *, std: float = 0.0, bound: float | None = None
    ) -> None:
        """Draw from N(0, std), or uniformly between ``-bound`` and ``bound``."""
        text = f"{self.seed}:{self.prefix}.{name}".encode()
        number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=False)
        source, values = torch.Generator().manual_seed(number >> 1), torch.empty(parameter.shape)
        if bound is None:
            values.normal_(0.0, std, generator=source)
        else:
            values.uniform_(-bound, bound, generator=source)
        parameter.copy_(values)
