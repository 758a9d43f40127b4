"""Whole networks equal the plain loops in float64, forward and gradients."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Literal, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.networks import (
    Activation,
    BlockConfig,
    Norm,
    NormPlacement,
    Positions,
    Skips,
)
from qkvary.nn.cache import KVCache
from qkvary.nn.encoder import Encoder
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    DECISIVE,
    GATE,
    distance,
    documents,
    make_config,
    make_encoder_config,
    make_language_model_config,
    padding_mask,
    randomize,
)
from tests.pairwise import pairwise
from tests.reference.networks import encoder_logits, language_model_logits

TOKENS = torch.tensor([[1, 12, 3, 3, 0, 7, 5], [0, 0, 9, 2, 11, 4, 6], [8, 1, 1, 10, 2, 12, 0]])


FEW_TOKENS = TOKENS[:1, :4]


def compare(
    network: nn.Module,
    reference: Callable[..., Tensor],
    real: Tensor,
    tokens: Tensor = TOKENS,
    **call: Tensor | None,
) -> float:
    """The largest relative difference of logits and of all gradients."""
    network.double()
    randomize(network, seed=43)
    logits = network(tokens, **call) * real
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(47)).double()
    (logits * weight).sum().backward()
    copies = {n: p.detach().clone().requires_grad_() for n, p in network.named_parameters()}
    named = {"mask": call.get("attention_mask"), "documents": call.get("document_ids")}
    given = {name: value for name, value in named.items() if value is not None}
    expected = reference(network.config, copies, tokens, **given) * real
    (expected * weight).sum().backward()
    every = [_all_gradients(dict(network.named_parameters())), _all_gradients(copies)]
    return max(distance(logits, expected), distance(*every))


def _all_gradients(named: dict[str, Tensor]) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(t) if t.grad is None else t.grad).flatten()
            for _, t in sorted(named.items())
        ]
    )


@pytest.mark.parametrize("label", DECISIVE)
def test_encoder(label: str) -> None:
    config = make_encoder_config(label)
    mask = padding_mask()
    found = compare(Encoder(config), encoder_logits, mask[..., None], attention_mask=mask)
    assert found < GATE


def test_an_encoder_that_pools() -> None:
    config = make_encoder_config("Q-K=V", pooling="mean")
    whole = torch.ones(3, 1)
    assert compare(Encoder(config), encoder_logits, whole, attention_mask=padding_mask()) < GATE
    assert compare(Encoder(config), encoder_logits, whole) < GATE


@pytest.mark.parametrize("label", DECISIVE)
def test_language_model(label: str) -> None:
    config = make_language_model_config(label)
    mask = padding_mask()
    found = compare(
        LanguageModel(config),
        language_model_logits,
        mask[..., None],
        attention_mask=mask,
        document_ids=documents(),
    )
    assert found < GATE


@pairwise(
    "norm, placement, activation, skips",
    itertools.product(
        ["layernorm", "rmsnorm", "rmsnorm-plus-one"],
        get_args(NormPlacement),
        get_args(Activation),
        get_args(Skips),
    ),
)
def test_every_kind_of_block(
    norm: Literal["layernorm", "rmsnorm", "rmsnorm-plus-one"],
    placement: NormPlacement,
    activation: Activation,
    skips: Skips,
) -> None:
    block = BlockConfig(
        d_ff=11,
        norm=norm,
        norm_placement=placement,
        activation=activation,
        bias=activation != "gelu",
        skips=skips,
    )
    encoder = dataclasses.replace(make_encoder_config("Q-K=V"), block=block, num_layers=1)
    assert compare(Encoder(encoder), encoder_logits, torch.ones(1, 4, 1), FEW_TOKENS) < GATE
    model = dataclasses.replace(
        make_language_model_config("Q=K=V"), block=block, num_layers=1, positions="learned"
    )
    network = LanguageModel(model)
    assert compare(network, language_model_logits, torch.ones(1, 4, 1), FEW_TOKENS) < GATE


@pytest.mark.parametrize("positions", get_args(Positions))
@pytest.mark.parametrize("tied_head", [True, False], ids=["tied", "untied"])
def test_every_kind_of_position_and_head(positions: Positions, tied_head: bool) -> None:
    encoder = dataclasses.replace(make_encoder_config("QKV"), positions=positions, num_layers=1)
    assert compare(Encoder(encoder), encoder_logits, torch.ones(3, 7, 1)) < GATE
    model = make_language_model_config(
        "QKV",
        positions=positions,
        tied_head=tied_head,
        head_bias=not tied_head,
        scale_embedding=tied_head,
    )
    mask = padding_mask()
    found = compare(
        LanguageModel(dataclasses.replace(model, num_layers=1)),
        language_model_logits,
        mask[..., None],
        attention_mask=mask,
        document_ids=documents(),
    )
    assert found < GATE


@pytest.mark.parametrize("skips", get_args(Skips))
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_networks_without_norms(skips: Skips, shared: bool) -> None:
    block = BlockConfig(d_ff=11, norm="none", skips=skips)
    given = dataclasses.replace(
        make_language_model_config("GQA-2"), block=block, num_layers=3, shared_blocks=shared
    )
    network = LanguageModel(given)
    assert compare(network, language_model_logits, torch.ones(3, 7, 1)) < GATE
    assert len([name for name in network.state_dict() if "o_proj.weight" in name]) == (
        1 if shared else 3
    )
    network.eval()
    cache, parts = KVCache(given.layers, max_tokens=TOKENS.shape[1]), list[Tensor]()
    with torch.no_grad():
        for chunk in TOKENS.split([3, 1, 1, 2], dim=1):
            parts.append(network(chunk, cache=cache))
        assert distance(torch.cat(parts, dim=1), network(TOKENS)) < GATE


def test_layers_may_differ() -> None:
    labels = ("Q=K=V@rotary", "GQA-2@w3")
    layers = tuple(make_config(label, causal=True) for label in labels)
    config = dataclasses.replace(make_language_model_config("QKV"), attention=layers)
    found = compare(LanguageModel(config), language_model_logits, torch.ones(3, 7, 1))
    assert found < GATE


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm-plus-one"])
def test_parallel_sublayers_and_capped_logits(norm: Norm) -> None:
    block = BlockConfig(d_ff=11, norm=norm, activation="geglu-tanh", parallel=True)
    model = make_language_model_config("GQA-2@rotary", block=block, logit_cap=0.7)
    network = LanguageModel(model)
    assert compare(network, language_model_logits, torch.ones(3, 7, 1)) < GATE
    logits, targets = network(TOKENS), TOKENS.roll(-1, dims=1)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    features = network.features(TOKENS).flatten(0, 1)
    assert distance(network.token_losses(features, targets.flatten()), expected) < GATE
    gradients = []
    for loss in (network(TOKENS, targets=targets), expected.sum()):
        network.zero_grad()
        loss.backward(retain_graph=True)
        gradients.append(_all_gradients(dict(network.named_parameters())))
    assert distance(*gradients) < GATE
