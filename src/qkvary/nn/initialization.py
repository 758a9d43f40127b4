"""Initialisation of the modules inside a network: one rule per kind of module."""

from torch import nn

from qkvary.arch.attention import Initialization
from qkvary.nn.attention import Attention
from qkvary.nn.feed_forward import FeedForward
from qkvary.nn.initializer import Initializer


def initialize(network: nn.Module, init: Initialization, seed: int) -> None:
    """Give every block of a network its first values, in place.

    Args:
        network: Built of the modules of this package. What is the network's own (embeddings and
            head) it initializer itself.
        init: For everything but the attention layers, which have their own.
        seed: The same seed gives the same values.
    """
    for name, module in network.named_modules():
        match module:
            case Attention():
                module.initialize(Initializer(seed, name))
            case FeedForward():
                module.initialize(Initializer(seed, name), init)
            case nn.LayerNorm() | nn.RMSNorm():
                module.reset_parameters()
            case _:
                pass
