"""Attention equals the plain loops in float64, forward and gradients."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch

from qkvary.arch.attention import AttentionConfig, Kernel, PositionConfig, ScaleConfig, ValueRope
from qkvary.nn.attention import Attention
from tests.contracts import variant_cases
from tests.contracts.variant_cases import (
    BATCH,
    DECISIVE,
    EVERY_LABEL,
    FUSED,
    GATE,
    LABELS,
    MASKED,
    distance,
    make_config,
    make_layer,
    outcome,
    random_input,
    variant_pairs,
    variant_values,
)
from tests.pairwise import pairwise
from tests.reference.attention import attend

ROTARY = [label for label in LABELS if "rotary" in label]


def compare(config: AttentionConfig, *, batch: int = BATCH, **call: Any) -> float:
    return variant_cases.compare(Attention(config), attend, random_input(37, batch=batch), **call)


@variant_pairs("label, causal", EVERY_LABEL, (True, False))
def test_plain_sequences(label: str, causal: bool) -> None:
    assert compare(make_config(label, causal=causal), batch=1) < GATE


@variant_values("label, causal", EVERY_LABEL, (True, False))
def test_padding_and_documents(label: str, causal: bool) -> None:
    assert compare(make_config(label, causal=causal), **MASKED) < GATE


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@variant_pairs("label, value_rope, causal", ROTARY, ("none", "counter", "rotated"), (True, False))
def test_the_meanings_of_a_rotated_value(label: str, value_rope: ValueRope, causal: bool) -> None:
    config = make_config(label, causal=causal, value_rope=value_rope)
    assert compare(config, batch=1) < GATE


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@pytest.mark.parametrize("label", ["QKV@rotary", "Q-I-V@rotary", "Q=V@rotary"])
@pytest.mark.parametrize("value_rope", ["counter", "rotated"])
def test_a_value_of_its_own_may_be_rotated_too(label: str, value_rope: ValueRope) -> None:
    position = PositionConfig(value_rope=value_rope, rotates_value=True)
    config = make_config(label, causal=True, position=position)
    plain = make_config(label, causal=True, position=PositionConfig(value_rope=value_rope))
    assert compare(config, **MASKED) < GATE
    x = random_input(37)
    with torch.no_grad():
        rotated, other = Attention(config).double()(x), Attention(plain).double()(x)
    assert distance(rotated, other) > 0.1


@pairwise(
    "label, kernel, causal, masked",
    itertools.product(DECISIVE, ["explicit", "sdpa"], [True, False], [True, False]),
)
def test_positions_are_those_given(label: str, kernel: Kernel, causal: bool, masked: bool) -> None:
    positions = torch.tensor(
        [[3, 4, 6, 7, 11, 12, 20], [0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]]
    )
    config = make_config(label, causal=causal, kernel=kernel)
    call = MASKED if masked else {}
    assert compare(config, positions=positions if masked else positions[:1], **call) < GATE


@pytest.mark.parametrize("label", DECISIVE)
def test_unusual_sizes(label: str) -> None:
    """Scores by width, no biases, heads that do not add up to the width, one ``+`` map a head."""
    position = PositionConfig(
        plus_features=7, plus_per_head=True, rotary_fraction=1.0, rotary_base=50.0
    )
    head_dim = None if label.startswith("I") else 6
    config = make_config(
        label,
        causal=True,
        position=position,
        scale=ScaleConfig(by="width"),
        bias=False,
        out_bias=False,
        head_dim=head_dim,
    )
    assert compare(config, **MASKED) < GATE


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_every_rotated_pair_has_a_frequency_of_its_own(fraction: float) -> None:
    position = PositionConfig(rotary_fraction=fraction, rotary_base=50.0)
    config = make_config("Q-K=V@rotary", causal=True, position=position, head_dim=10)
    assert compare(config, **MASKED) < GATE


@variant_pairs("label, causal", FUSED, (True, False))
def test_the_fused_kernel_agrees(label: str, causal: bool) -> None:
    """The two kernels compute one function; the explicit one is held to the reference above."""
    for call, x in (({}, random_input(37, batch=1)), (MASKED, random_input(37))):
        layers = [make_layer(label, causal=causal, kernel=one) for one in ("explicit", "sdpa")]
        results = [
            outcome(partial(layer, **call), dict(layer.named_parameters()), x, **call)
            for layer in layers
        ]
        assert max(map(distance, *results)) < GATE
