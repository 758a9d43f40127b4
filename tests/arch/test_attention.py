"""Sizes and scales of an attention layer, and what it refuses."""

import itertools
import math

import pytest
import torch

from qkvary.arch.attention import (
    AttentionConfig,
    IdentityScale,
    Initialization,
    InitScheme,
    PositionConfig,
    ScaleConfig,
)
from qkvary.arch.labels import parse_variant
from qkvary.nn.attention import Attention
from qkvary.nn.blocks import initialize
from qkvary.nn.layout import Layout
from tests.pairwise import pairwise


def make(label: str, *, d_model: int = 24, num_heads: int = 4, **fields: object) -> AttentionConfig:
    return AttentionConfig(
        d_model=d_model,
        num_heads=num_heads,
        variant=parse_variant(label),
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("label", "widths"),
    [
        ("QKV", {"q": 24, "k": 24, "v": 24}),
        ("GQA-2", {"q": 24, "k": 12, "v": 12}),
        ("Q-MQA", {"q": 24, "k": 6}),
        ("Q[map]=V/2", {"v": 12, "k": 12}),
        ("I-K=V/1", {"x": 24, "k": 6}),
        ("Q-GQA-2@decoupled-4", {"q": 24, "k": 12, "q_rope": 16, "k_rope": 4}),
        ("Q-MQA@latent-9@decoupled-4", {"k": 9, "q_rope": 16, "k_rope": 4}),
    ],
)
def test_widths_follow_the_heads(label: str, widths: dict[str, int]) -> None:
    config = make(label)
    found = {source: config.width(source) for source in widths}  # type: ignore[arg-type]
    assert found == widths
    assert config.size_per_head == 6


@pytest.mark.parametrize(
    ("label", "fields", "message"),
    [
        ("QKV", {"d_model": 0}, "expected d_model of AttentionConfig in 1 ... 2^40, got 0"),
        ("QKV", {"num_heads": -1}, "num_heads of AttentionConfig in 1 ... 2^40, got -1"),
        ("QKV", {"d_model": 25}, "expected d_model divisible by num_heads, got 25 and 4"),
        ("QKV", {"dropout": 1.0}, "expected dropout in [0, 1), got 1.0"),
        ("GQA-3", {}, "expected KV heads that divide 4 query heads, got 3; choices: 1, 2, 4"),
        ("I-K-V", {"head_dim": 5}, "query, key or value is the layer input, got 4 * 5"),
        ("QKV@rotary", {"head_dim": 1}, "expected at least 2 channels per head for rotary, got 1"),
        ("Q-K[r24]-V", {}, "expected a rank below d_model = 24, got 24 for k"),
        ("QKV", {"head_dim": 0}, "head_dim of AttentionConfig in 1 ... 2^40, got 0"),
        ("QKV", {"kernel": "flash"}, "kernel to be one of auto, explicit, sdpa, got 'flash'"),
        *(
            (label, {"kernel": "sdpa"}, "expected kernel auto or explicit for ")
            for label in ("Q=K-V@diag-mean", "QKV@soft", "QKV@linear")
        ),
        ("QKV@sima", {"causal": True}, "expected a bidirectional layer for the core sima, "),
        ("QKV@linear@decay-learned", {"causal": False}, "expected a causal layer for a decay,"),
        ("Q-K-V[d/5]", {}, "expected a width divisible by 5 for rank d/5, got 24"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    label: str, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        make(label, **fields)  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plus_features": 0}, "expected plus_features of PositionConfig in 1 "),
        *(({"rotary_base": one}, "positive and finite rotary base") for one in (0.0, math.nan)),
        *(({"rotary_fraction": one}, "a rotary fraction in") for one in (0.0, 1.5)),
        ({"relative_distance": 0}, "expected relative_distance of PositionConfig in 1 "),
        ({"value_rope": "COUNT"}, "expected value_rope to be one of .*; did you mean counter?"),
    ],
)
def test_position_sizes_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PositionConfig(**fields)  # type: ignore[arg-type]


def test_the_scale_is_by_head_or_by_width() -> None:
    assert make("QKV").score_scale == pytest.approx(1 / math.sqrt(6))
    assert make("QKV", scale=ScaleConfig(by="width")).score_scale == pytest.approx(24**-0.5)


@pytest.mark.parametrize(
    ("d_model", "init", "factor"),
    [
        (768, Initialization(scheme="normal", std=0.02), 1.804),
        (256, Initialization(scheme="normal", std=0.02), 3.125),
        (96, Initialization(scheme="torch"), math.sqrt(3)),
        (768, Initialization(scheme="torch"), math.sqrt(3)),
    ],
)
def test_the_identity_scale_is_derived(d_model: int, init: Initialization, factor: float) -> None:
    """The paper's 1/(s sqrt d), which it rounds to 2 at its own width."""
    config = make("I-K-V", d_model=d_model, init=init)
    assert 1 / config.identity_correction == pytest.approx(factor, abs=5e-4)
    both = make("I-I-V", d_model=d_model, init=init)
    assert both.identity_correction == pytest.approx(config.identity_correction**2)


def score_deviation(label: str, scheme: InitScheme, identity: IdentityScale) -> float:
    """The root mean square of the scores of different tokens at initialisation."""
    init = Initialization(scheme=scheme, std=0.035, matched=True)
    config = make(
        label, d_model=96, num_heads=3, init=init, scale=ScaleConfig(identity=identity), bias=False
    )
    squares: list[float] = []
    for seed in range(4):
        layer = Attention(config)
        initialize(layer, init, seed)
        generator = torch.Generator().manual_seed(1000 + seed)
        x = torch.randn(2, 29, 96, generator=generator)
        layout = Layout(new_tokens=29)
        with torch.no_grad():
            scores = layer.core.multiply(layer.score(layer.read(x, layout), layout))
        off_diagonal = ~torch.eye(29, dtype=torch.bool)
        squares.append(float(scores[..., off_diagonal].square().mean()))
    return math.sqrt(sum(squares) / len(squares))


@pairwise(
    "label, scheme",
    itertools.product(
        ["I-K-V", "Q-I-I", "I-I-V", "Q[residual]-K-V", "Q[residual-gelu]-K-V", "Q-K[d/4]-V"],
        ["torch", "xavier", "xavier-matrices", "normal"],
    ),
    together=1,
    ids=str,
)
def test_scores_start_with_the_deviation_of_the_baseline(label: str, scheme: InitScheme) -> None:
    baseline = score_deviation("QKV", scheme, "derived")
    assert score_deviation(label, scheme, "derived") == pytest.approx(baseline, rel=0.1)
