"""Attention equals the plain loops in float64, forward and gradients."""

import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig, Kernel, PositionConfig, ScaleConfig, ValueRope
from qkvary.nn.attention import Attention
from tests.contracts.variant_cases import (
    BATCH,
    DECISIVE,
    EVERY_LABEL,
    FUSED,
    GATE,
    LABELS,
    TOKENS,
    distance,
    documents,
    make_config,
    padding_mask,
    random_input,
    randomize,
    variant_pairs,
    variant_values,
)
from tests.pairwise import pairwise
from tests.reference.attention import attend

Calls = dict[str, Tensor | None]

MASKED: Calls = {"attention_mask": padding_mask(), "document_ids": documents(), "positions": None}
PLAIN: Calls = {"attention_mask": None, "document_ids": None, "positions": None}
ROTARY = [label for label in LABELS if "rotary" in label]


def gradients(named: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """All gradients in one vector; a parameter without influence has none, or zeros."""
    tensors = [*(named[name] for name in sorted(named)), x]
    return torch.cat(
        [(torch.zeros_like(t) if t.grad is None else t.grad).flatten() for t in tensors]
    )


def compare(config: AttentionConfig, call: Calls, *, batch: int = BATCH) -> float:
    """The largest relative difference of outputs and of all gradients between nn and reference."""
    layer = Attention(config).double()
    randomize(layer, seed=31)
    x = random_input(37, batch=batch).requires_grad_()
    mask = call["attention_mask"]
    real = torch.ones(batch, TOKENS, 1) if mask is None else mask[..., None]
    weight = random_input(41, batch=batch) * real
    output = layer(x, **call) * real
    (output * weight).sum().backward()

    copies = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters()}
    y = x.detach().clone().requires_grad_()
    expected = attend(
        config,
        copies,
        y,
        mask=mask,
        positions=call["positions"],
        documents=call["document_ids"],
    )
    expected = expected * real
    (expected * weight).sum().backward()
    return max(
        distance(output, expected),
        distance(gradients(dict(layer.named_parameters()), x), gradients(copies, y)),
    )


@variant_pairs("label, causal", EVERY_LABEL, (True, False))
def test_plain_sequences(label: str, causal: bool) -> None:
    assert compare(make_config(label, causal=causal), PLAIN, batch=1) < GATE


@variant_values("label, causal", EVERY_LABEL, (True, False))
def test_padding_and_documents(label: str, causal: bool) -> None:
    assert compare(make_config(label, causal=causal), MASKED) < GATE


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@variant_pairs("label, value_rope, causal", ROTARY, ("none", "counter", "rotated"), (True, False))
def test_the_meanings_of_a_rotated_value(label: str, value_rope: ValueRope, causal: bool) -> None:
    config = make_config(label, causal=causal, value_rope=value_rope)
    assert compare(config, PLAIN, batch=1) < GATE


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@pytest.mark.parametrize("label", ["QKV@rotary", "Q-I-V@rotary", "Q=V@rotary"])
@pytest.mark.parametrize("value_rope", ["counter", "rotated"])
def test_a_value_of_its_own_may_be_rotated_too(label: str, value_rope: ValueRope) -> None:
    position = PositionConfig(value_rope=value_rope, rotates_value=True)
    config = make_config(label, causal=True, position=position)
    plain = make_config(label, causal=True, position=PositionConfig(value_rope=value_rope))
    assert compare(config, MASKED) < GATE
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
    call = {**MASKED, "positions": positions} if masked else {**PLAIN, "positions": positions[:1]}
    assert compare(config, call) < GATE


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
    assert compare(config, MASKED) < GATE


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_every_rotated_pair_has_a_frequency_of_its_own(fraction: float) -> None:
    position = PositionConfig(rotary_fraction=fraction, rotary_base=50.0)
    config = make_config("Q-K=V@rotary", causal=True, position=position, head_dim=10)
    assert compare(config, MASKED) < GATE


@variant_pairs("label, causal", FUSED, (True, False))
def test_the_fused_kernel_agrees(label: str, causal: bool) -> None:
    """The two kernels compute one function; the explicit one is held to the reference above."""
    for call, batch in ((PLAIN, 1), (MASKED, BATCH)):
        results: list[Tensor] = []
        for kernel in ("explicit", "sdpa"):
            layer = Attention(make_config(label, causal=causal, kernel=kernel)).double()
            randomize(layer, seed=31)
            x = random_input(37, batch=batch).requires_grad_()
            mask = call["attention_mask"]
            real = torch.ones(batch, TOKENS, 1) if mask is None else mask[..., None]
            output = layer(x, **call) * real
            (output * random_input(41, batch=batch)).sum().backward()
            every = gradients(dict(layer.named_parameters()), x)
            results.append(torch.cat([output.detach().flatten(), every]))
        assert distance(results[1], results[0]) < GATE
