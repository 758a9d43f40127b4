"""Finds the feed-forward width that gives a network as many parameters as another network."""

from __future__ import annotations

from dataclasses import replace

from qkvary.arch.networks import Network
from qkvary.costs.parameters import network_parameters


def match_parameters(network: Network, target: Network) -> Network:
    """Return the network with the ``d_ff`` that brings its size nearest to the target's.

    Every channel of the feed-forward networks has the same number of parameters, so the counts
    for two widths determine the result. If two widths are equally near, the smaller is taken.
    """
    wanted = network_parameters(target).total
    here = network_parameters(network).total
    channel = network_parameters(_widened(network, 1)).total - here
    nearest = _widened(network, max(1 - network.block.d_ff, (wanted - here) // channel))
    wider = _widened(nearest, 1)
    off = wanted - network_parameters(nearest).total
    return wider if abs(off - channel) < abs(off) else nearest


def _widened(network: Network, channels: int) -> Network:
    block = replace(network.block, d_ff=network.block.d_ff + channels)
    return replace(network, block=block)
