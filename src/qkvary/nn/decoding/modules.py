"""Checks that a network still computes with the modules it was built from, and nothing else."""

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, type_before_parametrizations

from qkvary.nn.attention import Attention
from qkvary.nn.blocks import Block, FeedForward
from qkvary.nn.linear import is_watched
from qkvary.nn.projections import Latent, LowRank
from qkvary.nn.quantized_weights import Dequantized


def is_as_built(network: nn.Module) -> bool:
    """Return whether a network's weights alone determine what it computes.

    They do not if modules have hooks or were replaced.
    """
    return not any(is_watched(part) or not _has_own_parts(part) for part in network.modules())


def _has_own_parts(part: nn.Module) -> bool:
    match part:
        case Attention():
            found, kinds = (*part.projections.values(), part.o_proj), (nn.Linear, LowRank)
        case FeedForward():
            found, kinds = (part.up, part.down, part.gate), (nn.Linear,)
        case Latent():
            found, kinds = (part.key, part.value), (nn.Linear,)
        case Block():
            found, kinds = (part.attention, part.feed_forward), (Attention, FeedForward)
        case ParametrizationList():
            found, kinds = tuple(part), (Dequantized,)
        case _:
            return True
    return all(type_before_parametrizations(one) in kinds for one in found if one is not None)
