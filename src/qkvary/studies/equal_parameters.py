"""Giving back what sharing saves: feed-forward networks that are widened to equal parameters.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import NetworkConfig
from qkvary.costs.parameters import network_parameters

if TYPE_CHECKING:
    from qkvary.studies.study import Study


def match_parameters(network: NetworkConfig, target: NetworkConfig) -> NetworkConfig:
    """The network with the ``d_ff`` that brings its parameters nearest to those of the target.

    A channel of all feed-forward networks costs the same whichever it is, so that the width follows
    from two counts. Of two widths that are equally near, the smaller is taken.

    Args:
        network: What is widened, or narrowed.
        target: What has the right number of parameters.
    """
    wanted = network_parameters(target).total
    here = network_parameters(network).total
    channel = network_parameters(_widened(network, 1)).total - here
    nearest = _widened(network, max(1 - network.block.d_ff, (wanted - here) // channel))
    wider = _widened(nearest, 1)
    off = wanted - network_parameters(nearest).total
    return wider if abs(off - channel) < abs(off) else nearest


def describe_equal_parameters(study: Study) -> Iterator[str]:
    """Say, for each setting that gives parameters back, which widths that makes."""
    baseline = parse_variant(study.baseline)
    for setting in study.settings:
        if not setting.equal_parameters:
            continue
        labels = study.variants_of(setting)
        networks = {label: setting.network_of(parse_variant(label), baseline) for label in labels}
        target = setting.network.with_variant(baseline)
        given = ", ".join(
            f"{label} {network.block.d_ff:,} ({network_parameters(network).total:,} parameters)"
            for label, network in networks.items()
            if network != target
        )
        yield (
            f"In {setting.name} the feed-forward width follows from the parameters of "
            f"{study.baseline}, {network_parameters(target).total:,} with a width of "
            f"{target.block.d_ff:,}: {given}."
        )


def _widened(network: NetworkConfig, channels: int) -> NetworkConfig:
    block = replace(network.block, d_ff=network.block.d_ff + channels)
    return replace(network, block=block)
