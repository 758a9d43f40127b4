"""MACs by hand, and pairs against counting them one by one; ``tests/papers`` has the tables."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.variants import QKV
from qkvary.costs.macs import score_macs, visible_pairs


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
