"""Parameters against counting by hand; ``tests/papers`` has the papers' tables."""

import dataclasses

import pytest

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.costs.parameters import attention_parameters, network_parameters
from tests.arch.synthetic_networks import synthetic_encoder


@pytest.mark.parametrize(
    ("label", "published"),
    [
        ("QKV", 72_586),
        # The published 64,288 counts 11 numbers a layer that this variant never uses.
        ("Q=K-V", 64_288 - 22),
        ("(Q=K-V)+", 64_288),
    ],
)
def test_synthetic_networks_have_the_published_counts(label: str, published: int) -> None:
    assert network_parameters(synthetic_encoder(label)).total == published


@pytest.mark.parametrize(
    ("label", "weights", "biases"),
    [
        # 6 = d_model, 2 heads of 3: each full projection is 36 + 6, the output's as well.
        ("QKV", 4 * 36, 4 * 6),
        ("Q=K=V", 2 * 36, 2 * 6),
        ("I-K-V", 3 * 36, 3 * 6),
        ("I-I-I", 36, 6),
        ("MQA", 36 + 18 + 18 + 36, 6 + 3 + 3 + 6),
        ("Q-MQA", 36 + 18 + 36, 6 + 3 + 6),
        ("Q-K[r2]-V", 36 + 2 * 12 + 36 + 36, 24),
        ("Q-K=V[r2]/1", 36 + 2 * 9 + 36, 6 + 3 + 6),
        ("Q[map]=K-V", 3 * 36 + 2 * 9, 18),
        ("(Q=K-V)+", 3 * 36 + 10, 18 + 1),
        ("QKV@relative", 4 * 36 + 2 * 11, 24),
        ("QKV@rotary", 4 * 36, 24),
    ],
)
def test_attention_is_counted_by_hand(label: str, weights: int, biases: int) -> None:
    config = AttentionConfig(
        d_model=6,
        num_heads=2,
        variant=parse_variant(label),
        position=PositionConfig(relative_distance=5),
    )
    assert attention_parameters(config) == (weights, biases)


def test_causal_layers_have_no_relative_bias_for_the_future() -> None:
    config = AttentionConfig(
        d_model=6,
        num_heads=2,
        variant=parse_variant("QKV@relative"),
        position=PositionConfig(relative_distance=5),
    )
    causal = dataclasses.replace(config, causal=True)
    saved = attention_parameters(config).weights - attention_parameters(causal).weights
    assert saved == 2 * 5


def test_every_part_of_an_unusual_network() -> None:
    config = EncoderConfig(
        attention=AttentionConfig(d_model=6, num_heads=2, bias=False, out_bias=False),
        block=BlockConfig(d_ff=5, activation="swiglu", norm="rmsnorm", norm_placement="pre"),
        num_layers=3,
        vocabulary=7,
        max_tokens=11,
        classes=4,
        positions="learned",
    )
    found = network_parameters(config)
    assert found.to_dict() == {
        "embedding": 7 * 6 + 6,
        "positions": 11 * 6,
        "attention": 3 * 4 * 36,
        "feed_forward": 3 * 3 * 30,
        "norms": 7 * 6 + 12,
        "head": 36 + 6 + 24 + 4,
        "biases": 6 + 6 + 6 + 4,
        "weights": found.total - 22,
        "total": 48 + 66 + 432 + 270 + 54 + 70,
        "other": 0,
    }
