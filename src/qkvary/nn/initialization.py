"""How parameters get their first values.

Every parameter is drawn from a generator of its own, seeded by the network's seed and the
parameter's name. So two variants of one seed start equal wherever they have the same parameter,
which is what makes their differences paired.
"""

import hashlib
import math

import torch
from torch import Tensor, nn

from qkvary.arch.attention import Initialization
from qkvary.nn.attention import Attention
from qkvary.nn.feed_forward import FeedForward
from qkvary.nn.positions import PlusBias
from qkvary.nn.projections import Projection


def initialize(network: nn.Module, init: Initialization, seed: int) -> None:
    """Give every parameter of a network its first value, in place.

    Args:
        network: Built of the modules of this package; attention layers use their own configuration.
        init: For everything but the attention layers.
        seed: The same seed gives the same values.
    """
    with torch.no_grad():
        for name, module in network.named_modules():
            match module:
                case Attention():
                    _initialize_attention(module, _Draw(seed, name))
                case FeedForward():
                    _initialize_feed_forward(module, init, _Draw(seed, name))
                case nn.LayerNorm() | nn.RMSNorm():
                    module.reset_parameters()
                case _:
                    pass


class _Draw:
    """Draws into parameters, each from a generator of its own."""

    def __init__(self, seed: int, prefix: str) -> None:
        self.seed, self.prefix = seed, prefix

    def uniform(self, name: str, parameter: Tensor, bound: float) -> None:
        """U(-bound, bound)."""
        values = torch.empty(parameter.shape).uniform_(-bound, bound, generator=self._source(name))
        parameter.copy_(values)

    def normal(self, name: str, parameter: Tensor, std: float) -> None:
        """N(0, std^2)."""
        values = torch.empty(parameter.shape).normal_(0.0, std, generator=self._source(name))
        parameter.copy_(values)

    def weight(self, name: str, parameter: Tensor, init: Initialization, std: float) -> None:
        """A matrix of a given deviation, uniform unless the scheme is normal."""
        if init.scheme == "normal":
            self.normal(name, parameter, std)
        else:
            self.uniform(name, parameter, math.sqrt(3.0) * std)

    def bias(self, name: str, parameter: Tensor | None, init: Initialization, fan_in: int) -> None:
        """A bias: as torch's layers draw it, zero under the other schemes."""
        if parameter is None:
            return
        if init.scheme == "torch":
            self.uniform(name, parameter, 1.0 / math.sqrt(fan_in))
        else:
            parameter.zero_()

    def _source(self, name: str) -> torch.Generator:
        text = f"{self.seed}:{self.prefix}.{name}".encode()
        number = int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=False)
        return torch.Generator().manual_seed(number >> 1)


def initialize_linear(
    name: str, linear: nn.Linear, init: Initialization, seed: int, *, std: float | None = None
) -> None:
    """Draw a linear layer by its scheme, or with a given deviation."""
    draw = _Draw(seed, name)
    chosen = init.weight_std(linear.in_features, linear.out_features) if std is None else std
    with torch.no_grad():
        draw.weight("weight", linear.weight, init, chosen)
        draw.bias("bias", linear.bias, init, linear.in_features)


def initialize_embedding(
    name: str, weight: Tensor, init: Initialization, seed: int, *, bound: float | None = None
) -> None:
    """Draw an embedding: N(0, 1) as torch does, N(0, std) under ``normal``, or U(-bound, bound)."""
    draw = _Draw(seed, name)
    with torch.no_grad():
        if bound is not None:
            draw.uniform("weight", weight, bound)
        else:
            draw.normal("weight", weight, init.std if init.scheme == "normal" else 1.0)


def _initialize_attention(layer: Attention, draw: _Draw) -> None:
    config, init = layer.config, layer.config.init
    named = (("q_proj", layer.q_proj), ("k_proj", layer.k_proj), ("v_proj", layer.v_proj))
    for name, projection in named:
        if projection is not None:
            _initialize_projection(name, projection, init, config.projection_std, draw)
    out = layer.o_proj
    std = init.output_std if init.scheme == "normal" else None
    chosen = init.weight_std(out.in_features, out.out_features) if std is None else std
    draw.weight("o_proj.weight", out.weight, init, chosen)
    draw.bias("o_proj.bias", out.bias, init, out.in_features)
    if layer.query_map is not None:
        layer.query_map.copy_(torch.eye(config.size_per_head).expand_as(layer.query_map))
    if layer.relative is not None:
        layer.relative.weight.zero_()
    if layer.plus is not None:
        _initialize_plus(layer.plus, init, draw)


def _initialize_projection(
    name: str, projection: Projection, init: Initialization, std: float, draw: _Draw
) -> None:
    """A low-rank product B A starts with the deviation that the full matrix would have."""
    if projection.down is None:
        draw.weight(f"{name}.weight", projection.weight, init, std)
        draw.bias(f"{name}.bias", projection.bias, init, projection.weight.shape[1])
        return
    rank, d_model = projection.down.shape
    draw.weight(f"{name}.down", projection.down, init, std)
    draw.weight(f"{name}.weight", projection.weight, init, 1.0 / math.sqrt(rank))
    draw.bias(f"{name}.bias", projection.bias, init, d_model)


def _initialize_plus(plus: PlusBias, init: Initialization, draw: _Draw) -> None:
    features = plus.weight.shape[1]
    draw.weight("plus.weight", plus.weight, init, init.weight_std(features, 1))
    draw.bias("plus.bias", plus.bias, init, features)


def _initialize_feed_forward(layer: FeedForward, init: Initialization, draw: _Draw) -> None:
    for name, linear in (("up", layer.up), ("gate", layer.gate), ("down", layer.down)):
        if linear is None:
            continue
        std = init.weight_std(linear.in_features, linear.out_features)
        if name == "down" and init.scheme == "normal" and init.output_std is not None:
            std = init.output_std
        draw.weight(f"{name}.weight", linear.weight, init, std)
        draw.bias(f"{name}.bias", linear.bias, init, linear.in_features)
