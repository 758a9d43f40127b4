"""Whether two networks have the same weights, to the bit."""

import torch
from torch import nn


def same_weights(found: nn.Module, expected: nn.Module) -> bool:
    """Return whether all weights have equal names, types and bits."""
    mine, theirs = found.state_dict(), expected.state_dict()
    return mine.keys() == theirs.keys() and all(
        mine[name].dtype == theirs[name].dtype and torch.equal(mine[name], theirs[name])
        for name in theirs
    )
