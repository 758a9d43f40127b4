"""Computes the minimum memory of a network, so that networks that cannot fit are refused."""

from qkvary.arch.networks import TokenNetwork

TOKEN_BYTES = 8
"""Bytes of a token id as a 64-bit integer."""


def forward_bytes(network: TokenNetwork, *, tokens: int, number_bytes: int) -> int:
    """Return the minimum bytes that a forward pass takes in addition to the weights.

    Counts the token ids of all rows, the residual stream and the inner activations of one
    feed-forward network, but not the memory of attention kernels.
    """
    return tokens * (TOKEN_BYTES + number_bytes * (network.d_model + network.block.d_ff))
