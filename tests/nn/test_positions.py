"""Rotations with a factor, as scaled rotary positions have it."""

import pytest
import torch

from qkvary.arch.attention import AttentionConfig, PositionConfig, ValueRope
from qkvary.arch.labels import parse_variant
from qkvary.arch.rotary import RotaryScaling
from qkvary.nn.attention import Attention
from qkvary.nn.cache import LayerCache


@pytest.mark.parametrize("rope", ["none", "counter"])
def test_values_that_are_turned_back_keep_their_size(rope: ValueRope) -> None:
    """A token that sees itself alone mixes its own value, whatever the factor of the rotation."""
    scaling = RotaryScaling(form="yarn", factor=4.0, original_tokens=7, attention_factor=0.7)
    position = PositionConfig(rotary_fraction=0.5, value_rope=rope, scaling=scaling)
    config = AttentionConfig(
        d_model=12,
        num_heads=2,
        variant=parse_variant("Q-K=V@rotary@w1"),
        causal=True,
        position=position,
    )
    layer = Attention(config, seed=3).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert layer.k_proj is not None
    torch.testing.assert_close(layer(x), layer.o_proj(layer.k_proj(x)))


def test_a_cache_of_positions_that_depend_on_the_length_has_one() -> None:
    scaling = RotaryScaling(form="dynamic", factor=2.0, original_tokens=3)
    position = PositionConfig(rotary_fraction=1.0, scaling=scaling)
    config = AttentionConfig(
        d_model=8, num_heads=2, variant=parse_variant("QKV@rotary"), causal=True, position=position
    )
    with pytest.raises(ValueError, match="expected max_tokens for a layer whose rotary positions"):
        LayerCache(config)
    layer, x = Attention(config, seed=3).double(), torch.randn(1, 7, 8, dtype=torch.float64)
    cache = LayerCache(config, max_tokens=7)
    parts = [layer(part, cache=cache) for part in x.split(2, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x))
