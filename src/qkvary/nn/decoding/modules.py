"""Whether a network still computes by the modules that it was built of, and nothing else."""

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, type_before_parametrizations

from qkvary.nn.attention import Attention
from qkvary.nn.blocks import Block, FeedForward
from qkvary.nn.linear import is_watched
from qkvary.nn.projections import Latent, LowRank
from qkvary.nn.quantized_weights import Dequantized


def is_as_built(network: nn.Module) -> bool:
    """Return whether reading the weights of a network is enough to compute what it computes.

    It is not where hooks wait for calls of modules, or other modules have taken their place.
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
