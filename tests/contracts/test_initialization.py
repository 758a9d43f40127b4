"""Every parameter gets a value, from the seed alone, with the deviation that it should have."""

import dataclasses
import math
from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from torch import nn

from qkvary.arch.attention import AttentionConfig, Initialization, InitScheme
from qkvary.arch.labels import parse_variant
from qkvary.arch.named_networks import gpt_300m, gpt_1200m
from qkvary.arch.networks import EncoderConfig, LanguageModelConfig, VisionTransformerConfig
from qkvary.nn.language_model import LanguageModel
from qkvary.papers.key_value.protocols import number_network
from tests.contracts.variant_cases import (
    BIDIRECTIONAL,
    LABELS,
    NETWORKS,
    make_config,
    make_encoder_config,
    make_language_model_config,
    make_vision_config,
    variant_pairs,
    variant_values,
)

Config = EncoderConfig | LanguageModelConfig | VisionTransformerConfig
SCHEMES: tuple[InitScheme, ...] = get_args(InitScheme)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Whatever torch allocates without a value holds NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(mode=before)


def build(config: Config, seed: int) -> nn.Module:
    return NETWORKS[type(config)](config, seed=seed)


def with_scheme(config: Config, scheme: InitScheme) -> Config:
    init = Initialization(scheme=scheme, output_std=0.01)
    assert isinstance(config.attention, AttentionConfig)
    attention = dataclasses.replace(config.attention, init=init)
    return dataclasses.replace(config, init=init, attention=attention)


@variant_values("label, scheme", LABELS, SCHEMES)
def test_every_parameter_is_drawn_from_the_seed(label: str, scheme: InitScheme) -> None:
    configs: list[Config] = [
        make_language_model_config(label, positions="learned", tied_head=False, head_bias=True)
    ]
    if label in BIDIRECTIONAL:
        images = make_vision_config(label, d_head=7)
        configs += [make_encoder_config(label, positions="learned"), images]
    for config in configs:
        chosen = with_scheme(config, scheme)
        states: list[dict[str, torch.Tensor]] = []
        for global_seed, seed in ((1, 7), (2, 7), (1, 8)):
            torch.manual_seed(global_seed)
            states.append(build(chosen, seed).state_dict())
        first, again, other = states
        for name, value in first.items():
            assert value.isfinite().all(), name
            # The global generator plays no part: a value torch drew by itself would differ here.
            assert torch.equal(value, again[name]), name
        assert any(not torch.equal(value, other[name]) for name, value in first.items())


@variant_values("label", LABELS)
def test_variants_of_one_seed_start_equal_where_they_have_the_same_parameter(label: str) -> None:
    config = make_language_model_config("QKV")
    baseline = build(with_scheme(config, "normal"), 7).state_dict()
    state = build(with_scheme(make_language_model_config(label), "normal"), 7).state_dict()
    common = [
        name for name in state if name in baseline and state[name].shape == baseline[name].shape
    ]
    assert len(common) > 10
    # A rank's outer matrix has a deviation of its own, whatever its shape.
    ranked = [name.replace("down", "weight") for name in state if name.endswith(".down")]
    ranked = [name for name in ranked if "feed_forward" not in name]
    for name in set(common) - set(ranked):
        assert torch.equal(state[name], baseline[name]), name


@variant_pairs(
    "label, scheme, matched",
    ["QKV", "Q=K-V", "Q=K=V", "Q-MQA", "Q-K[d/4]-V"],
    SCHEMES,
    (False, True),
)
def test_projections_have_their_deviation(label: str, scheme: InitScheme, matched: bool) -> None:
    init = Initialization(scheme=scheme, std=0.03, matched=matched)
    attention = AttentionConfig(
        d_model=96, num_heads=4, variant=parse_variant(label), init=init, causal=True
    )
    config = dataclasses.replace(
        make_language_model_config("QKV"), attention=attention, num_layers=1, init=init
    )
    layer = LanguageModel(config).stack.get_submodule("blocks.0.attention")
    widths = {"QKV": 288, "Q=K-V": 192, "Q=K=V": 96, "Q-MQA": 120, "Q-K[d/4]-V": 288}
    expected = {
        "torch": 1 / math.sqrt(3 * 96),
        "xavier": math.sqrt(2 / (96 + (288 if matched else widths[label]))),
        "xavier-matrices": math.sqrt(2 / (96 + 96)),
        "normal": 0.03,
    }[scheme]
    for source in attention.variant.projections:
        state = layer.get_submodule(f"{source}_proj").state_dict()
        weight = state["weight"] @ state["down"] if "down" in state else state["weight"]
        assert float(weight.std()) == pytest.approx(expected, rel=0.1)


def test_published_and_matched_xavier_differ_by_the_known_factor() -> None:
    """A packed matrix of two makes its projections start 1.155 times larger than one of three."""
    init = Initialization(scheme="xavier")
    two = make_config("Q=K-V", causal=True, init=init)
    three = dataclasses.replace(two, variant=parse_variant("QKV"))
    assert two.projection_std / three.projection_std == pytest.approx(math.sqrt(4 / 3))
    matched = dataclasses.replace(two, init=Initialization(scheme="xavier", matched=True))
    assert matched.projection_std == three.projection_std


@variant_values("label", ["QKV", "Q-K=V", "Q=K-V", "Q=K=V", "GQA-4", "MQA", "Q-GQA-4", "Q-MQA"])
def test_published_language_models_draw_every_matrix_alike(label: str) -> None:
    for config in (gpt_300m(label), gpt_1200m(label)):
        assert config.init == Initialization(scheme="normal", std=0.02)
        assert isinstance(config.attention, AttentionConfig)
        assert config.attention.init == config.init
        assert config.attention.projection_std == 0.02


def test_each_matrix_may_be_drawn_by_itself_with_the_biases_of_torch() -> None:
    network = number_network(16).with_variant(parse_variant("(Q=K-V)+"))
    state = build(network, 7).state_dict()
    block = "stack.blocks.0"
    for name, bound in (
        *((f"attention.{one}_proj.weight", math.sqrt(6 / (64 + 64))) for one in "kvo"),
        ("attention.plus.weight", math.sqrt(6 / (10 + 1))),
        ("feed_forward.up.weight", math.sqrt(6 / (64 + 256))),
        ("feed_forward.up.bias", math.sqrt(1 / 64)),
        ("feed_forward.down.weight", math.sqrt(6 / (256 + 64))),
        ("feed_forward.down.bias", math.sqrt(1 / 256)),
    ):
        assert 0.8 < float(state[f"{block}.{name}"].abs().max()) / bound <= 1, name
    assert 0.8 < float(state["head_bias"].abs().max()) * math.sqrt(64) <= 1


@pytest.mark.parametrize("tied_head", [True, False])
def test_an_embedding_may_have_a_deviation_of_its_own(tied_head: bool) -> None:
    config = make_language_model_config("QKV", tied_head=tied_head)
    config = dataclasses.replace(config, vocabulary=97)
    plain, chosen = (
        build(dataclasses.replace(config, init=Initialization(embedding_std=std)), 7).state_dict()
        for std in (None, 0.25)
    )
    values = chosen.pop("embedding") / 0.25
    assert float(values.std()) == pytest.approx(1.0, rel=0.05)
    # A normal deviate is beyond two in one of 22 cases, a uniform one never.
    assert 0.02 < float((values.abs() > 2).float().mean()) < 0.08
    assert all(torch.equal(value, plain[name]) for name, value in chosen.items())
