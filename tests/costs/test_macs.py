"""Pairs against counting them one by one; ``tests/contracts`` has the MACs of what is built."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.variants import QKV
from qkvary.costs.macs import visible_pairs


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
