"""Whole networks equal the plain loops in float64, forward and gradients."""

import dataclasses
import itertools
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.arch.networks import (
    Activation,
    BlockConfig,
    EncoderConfig,
    LanguageModelConfig,
    Norm,
    NormPlacement,
    Positions,
    Skips,
)
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts import variant_cases
from tests.contracts.variant_cases import (
    DECISIVE,
    GATE,
    MASKED,
    NETWORKS,
    distance,
    feed_network,
    make_config,
    make_encoder_config,
    make_language_model_config,
    padding_mask,
    randomize,
)
from tests.pairwise import pairwise
from tests.reference.networks import encoder_logits, language_model_logits

TOKENS = torch.tensor([[1, 12, 3, 3, 0, 7, 5], [0, 0, 9, 2, 11, 4, 6], [8, 1, 1, 10, 2, 12, 0]])


def compare(
    config: EncoderConfig | LanguageModelConfig, tokens: Tensor = TOKENS, **call: Tensor
) -> float:
    loops = encoder_logits if isinstance(config, EncoderConfig) else language_model_logits
    return variant_cases.compare(NETWORKS[type(config)](config), loops, tokens, **call)


@pytest.mark.parametrize("label", DECISIVE)
def test_encoder(label: str) -> None:
    assert compare(make_encoder_config(label), attention_mask=padding_mask()) < GATE


def test_an_encoder_that_pools() -> None:
    config = make_encoder_config("Q-K=V", pooling="mean")
    assert compare(config, attention_mask=padding_mask()) < GATE
    assert compare(config) < GATE


@pytest.mark.parametrize("label", DECISIVE)
def test_language_model(label: str) -> None:
    assert compare(make_language_model_config(label), **MASKED) < GATE


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
    norm: Norm, placement: NormPlacement, activation: Activation, skips: Skips
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
    assert compare(encoder, TOKENS[:1, :4]) < GATE
    model = dataclasses.replace(
        make_language_model_config("Q=K=V"), block=block, num_layers=1, positions="learned"
    )
    assert compare(model, TOKENS[:1, :4]) < GATE


@pytest.mark.parametrize("positions", get_args(Positions))
@pytest.mark.parametrize("tied_head", [True, False], ids=["tied", "untied"])
def test_every_kind_of_position_and_head(positions: Positions, tied_head: bool) -> None:
    encoder = dataclasses.replace(make_encoder_config("QKV"), positions=positions, num_layers=1)
    assert compare(encoder) < GATE
    model = make_language_model_config(
        "QKV",
        positions=positions,
        tied_head=tied_head,
        head_bias=not tied_head,
        scale_embedding=tied_head,
    )
    assert compare(dataclasses.replace(model, num_layers=1), **MASKED) < GATE


@pytest.mark.parametrize("skips", get_args(Skips))
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_networks_without_norms(skips: Skips, shared: bool) -> None:
    block = BlockConfig(d_ff=11, norm="none", skips=skips)
    given = dataclasses.replace(
        make_language_model_config("GQA-2"), block=block, num_layers=3, shared_blocks=shared
    )
    assert compare(given) < GATE
    network = LanguageModel(given).double().eval()
    randomize(network, seed=43)
    assert len([name for name in network.state_dict() if "o_proj.weight" in name]) == (
        1 if shared else 3
    )
    found = feed_network(network, TOKENS, [3, 1, 1, 2], KVCache(given.layers))
    with torch.no_grad():
        assert distance(found, network(TOKENS)) < GATE


def test_layers_may_differ() -> None:
    labels = ("Q=K=V@rotary", "GQA-2@w3")
    layers = tuple(make_config(label, causal=True) for label in labels)
    config = dataclasses.replace(make_language_model_config("QKV"), attention=layers)
    assert compare(config) < GATE


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm-plus-one"])
def test_parallel_sublayers_and_capped_logits(norm: Norm) -> None:
    block = BlockConfig(d_ff=11, norm=norm, activation="geglu-tanh", parallel=True)
    model = make_language_model_config("GQA-2@rotary", block=block, logit_cap=0.7)
    assert compare(model) < GATE
    network = LanguageModel(model).double()
    randomize(network, seed=43)
    logits, targets = network(TOKENS), TOKENS.roll(-1, dims=1)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    features = network.features(TOKENS).flatten(0, 1)
    assert distance(network.token_losses(features, targets.flatten()), expected) < GATE
    losses = (network(TOKENS, targets=targets), expected.sum())
    fused, plain = (torch.autograd.grad(loss, [*network.parameters()]) for loss in losses)
    assert max(map(distance, fused, plain)) < GATE
