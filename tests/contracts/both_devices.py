"""Networks on the CPU and on the device of ``tests.fake_device``, and the comparison of both."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig, Network
from tests.contracts.variant_cases import (
    DECISIVE,
    GATE,
    NETWORKS,
    distance,
    make_config,
    make_encoder_config,
    make_language_model_config,
    make_vision_config,
    randomize,
)
from tests.fake_device import DEVICE, DeviceTensor, FakeDevice

CPU = "cpu"
TOKENS = torch.tensor([[1, 12, 3, 3, 0, 7, 5], [0, 0, 9, 2, 11, 4, 6], [8, 1, 1, 10, 2, 12, 0]])
TARGETS = TOKENS.roll(-1, 1).masked_fill(TOKENS == 3, -100)
KINDS = ("language model", "encoder", "pooled encoder", "vision transformer", "encoder-decoder")
BFLOAT16 = 0.2
"""Of the size of what is compared: the CPU rounds in other places, and what it finds is up to 0.15
from float64."""

Work = Callable[[Any, str], Any]


def on_both(
    model: nn.Module, work: Work, *, gate: float = GATE, rounded: bool = False
) -> FakeDevice:
    """Compare the results of some work on the CPU and on the device; all stay on the device.

    Args:
        model: The network, on the CPU.
        work: Called with a copy of it and its device.
        gate: How far results may be from each other.
        rounded: Whether the numbers of a tensor are compared together, and not each alone.
    """
    expected = work(copy.deepcopy(model), CPU)
    with FakeDevice() as device:
        there = copy.deepcopy(model).to(DEVICE)
        device.uploads.clear()
        found = work(there, DEVICE)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(other, Tensor):
            assert isinstance(one, DeviceTensor)
            assert one.dtype == other.dtype
            near, exact = one.cpu().double(), other.double()
            far = (near - exact).norm() / exact.norm() if rounded else distance(near, exact)
            assert far < gate
        else:
            assert one == other
    return device


def move(arguments: dict[str, Any], device: str) -> dict[str, Any]:
    return tree_map_only(Tensor, lambda one: one.to(device), arguments)


@functools.cache
def configure(kind: str, label: str, cross: str = "same") -> Network | None:
    """A network of one layer; ``None`` where there is no such network."""
    block = BlockConfig(d_ff=11, dropout=0.1)
    try:
        causal = kind in ("language model", "encoder-decoder")
        attention = make_config(label, causal=causal)
        if kind == "language model":
            found = make_language_model_config(label, positions="learned")
            return dataclasses.replace(found, block=block, num_layers=1)
        if kind == "vision transformer":
            return make_vision_config(label)
        if kind == "encoder-decoder":
            return EncoderDecoderConfig(
                attention=attention,
                block=block,
                num_layers=1,
                vocabulary=13,
                source_vocabulary=14,
                max_tokens=17,
                cross_sharing=cross,
            )
        found = make_encoder_config(label, pooling="mean" if "pooled" in kind else "none")
        return dataclasses.replace(found, num_layers=1)
    except ValueError:
        # Refused by the configuration (tests/arch holds which).
        return configure(kind, label, "none") if cross == "same" else None


@functools.cache
def build(kind: str, label: str) -> nn.Module:
    """The network in float64, with weights that make a difference."""
    network = NETWORKS[type(configure(kind, label))](configure(kind, label))
    randomize(network.double(), seed=43)
    return network


FEW = (*DECISIVE, "Q-K=V@rotary", "Q-K=V@linear")
