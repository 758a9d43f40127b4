"""Initial values: every parameter is drawn from its own generator.

The generator is seeded by the network's seed and the parameter's name. So two variants of one seed
start equal wherever they have the same parameter, which is what makes their differences paired.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from qkvary.arch.attention import Initialization


class Initializer:
    """Draws the parameters of one module, in place."""

    def __init__(self, seed: int, prefix: str) -> None:
        """Name the module.

        Args:
            seed: The same seed gives the same values.
            prefix: The module's name in its network.
        """
        self.seed, self.prefix = seed, prefix

    def weight(self, name: str, parameter: Tensor, init: Initialization, std: float) -> None:
        """Return a weight matrix of a given deviation: uniform or normal, as the scheme says."""
        values = torch.empty(parameter.shape)
        source = self._source(name)
        if init.scheme == "normal":
            values.normal_(0.0, std, generator=source)
        else:
            bound = math.sqrt(3.0) * std
            values.uniform_(-bound, bound, generator=source)
        _put(parameter, values)

    def bias(self, name: str, parameter: Tensor | None, init: Initialization, fan_in: int) -> None:
        """Return a bias: drawn as torch's layers do, or zero, as the scheme says."""
        if parameter is None:
            return
        values = torch.zeros(parameter.shape)
        if init.scheme in ("torch", "xavier-matrices"):
            bound = 1.0 / math.sqrt(fan_in)
            values.uniform_(-bound, bound, generator=self._source(name))
        _put(parameter, values)

    def linear(
        self, name: str, layer: nn.Linear, init: Initialization, std: float | None = None
    ) -> None:
        """Initialize a linear layer by its scheme, or with a given deviation."""
        chosen = init.weight_std(layer.in_features, layer.out_features) if std is None else std
        self.weight(f"{name}.weight", layer.weight, init, chosen)
        self.bias(f"{name}.bias", layer.bias, init, layer.in_features)

    def table(self, name: str, parameter: Tensor, init: Initialization) -> None:
        """Initialize an embedding table: N(0, 1) under ``torch``, else as a matrix."""
        if init.scheme == "torch":
            self.normal(name, parameter, 1.0)
        else:
            self.weight(name, parameter, init, init.weight_std(*parameter.shape))

    def normal(self, name: str, parameter: Tensor, std: float) -> None:
        """Draw from N(0, std), whatever the scheme."""
        _put(
            parameter, torch.empty(parameter.shape).normal_(0.0, std, generator=self._source(name))
        )

    def _source(self, name: str) -> torch.Generator:
        text = f"{self.seed}:{self.prefix}.{name}".encode()
        number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=False)
        return torch.Generator().manual_seed(number >> 1)


def _put(parameter: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(values)
