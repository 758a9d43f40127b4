"""MACs against the papers' tables, and pairs against counting them one by one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.arch.variants import QKV
from qkvary.costs.macs import forward_macs, score_macs, visible_pairs


@pytest.mark.parametrize(
    ("label", "total", "attention"),
    [("QKV", 792.69, 343.60), ("Q-K=V", 749.74, 300.65), ("Q=K=V", 706.79, 257.70)],
)
def test_300m_networks_cost_what_the_paper_says(label: str, total: float, attention: float) -> None:
    found = forward_macs(as_model(gpt_300m(label)), tokens=2048, pairs="square")
    assert found.total / 1e9 == pytest.approx(total, abs=0.005)
    assert found.attention / 1e9 == pytest.approx(attention, abs=0.005)
    assert found.feed_forward / 1e9 == pytest.approx(343.60, abs=0.005)
    assert found.head / 1e9 == pytest.approx(105.50, abs=0.005)


def test_causal_pairs_cost_about_half() -> None:
    found = forward_macs(as_model(gpt_300m("QKV")), tokens=2048)
    assert found.total / 1e9 == pytest.approx(706.83, abs=0.005)
    assert found.attention / 1e9 == pytest.approx(257.74, abs=0.005)


@given(
    length=st.integers(1, 23),
    window=st.none() | st.integers(1, 29),
    stride=st.none() | st.integers(2, 29),
    causal=st.booleans(),
)
def test_visible_pairs_are_those_one_can_count(
    length: int, window: int | None, stride: int | None, causal: bool
) -> None:
    variant = dataclasses.replace(QKV, window=window, stride=stride)
    config = AttentionConfig(d_model=6, num_heads=2, causal=causal, variant=variant)

    def is_visible(distance: int) -> bool:
        if window is not None and abs(distance) < window:
            return True
        return distance % stride == 0 if stride else window is None

    counted = sum(
        is_visible(i - j) and (j <= i or not causal) for i in range(length) for j in range(length)
    )
    assert visible_pairs(config, length) == counted


@pytest.mark.parametrize(
    ("label", "length", "macs"),
    [
        # Fewer tokens than channels of a head: a map of 2 x 2 pairs, as in a softmax.
        ("QKV@sima", 2, 2 * 2 * 2 * 6),
        # More: k^T v of one KV head and q (k^T v) of both, 3 x 3 channels each.
        ("MQA@sima", 7, 7 * 9 + 2 * 7 * 9),
        ("MQA", 7, 2 * 7 * 7 * 6),
    ],
)
def test_without_a_softmax_the_cheaper_order_is_counted(label: str, length: int, macs: int) -> None:
    config = AttentionConfig(d_model=6, num_heads=2, variant=parse_variant(label))
    assert score_macs(config, length, "square") == macs


def test_plus_costs_a_channel_and_a_small_product_per_key() -> None:
    config = AttentionConfig(
        d_model=6,
        num_heads=3,
        variant=parse_variant("(Q=K-V)+"),
        position=PositionConfig(plus_features=10, plus_per_head=True),
    )
    plain = dataclasses.replace(config, variant=parse_variant("Q=K-V"))
    assert score_macs(config, 7, "square") - score_macs(plain, 7, "square") == 7 * 3 * 4 + 49 * 3
    normalised = dataclasses.replace(config, variant=parse_variant("(Q=K-V)+@diag-mean"))
    assert score_macs(normalised, 7, "square") - score_macs(plain, 7, "square") == 7 * 3 * 4
    shared = dataclasses.replace(config, variant=parse_variant("(MQA)+"))
    assert score_macs(shared, 7, "square") - score_macs(plain, 7, "square") == 7 * 3 * 4 + 49 * 9
    assert score_macs(plain, 7, "square") == 2 * 49 * 6
