"""Rotations: with a factor, as scaled rotary positions have it, and shared by layers."""

import pytest
import torch

from qkvary.arch.attention import AttentionConfig, PositionConfig, ValueRope
from qkvary.arch.labels import parse_variant
from qkvary.arch.rotary import RotaryScaling
from qkvary.nn.attention import Attention
from qkvary.nn.cache import LayerCache
from qkvary.nn.layout import Layout


def make(label: str, position: PositionConfig, d_model: int = 12) -> Attention:
    variant = parse_variant(label)
    config = AttentionConfig(
        d_model=d_model, num_heads=2, variant=variant, causal=True, position=position
    )
    return Attention(config, seed=3)


@pytest.mark.parametrize("rope", ["none", "counter"])
def test_values_that_are_turned_back_keep_their_size(rope: ValueRope) -> None:
    """A token that sees itself alone mixes its own value, whatever the factor of the rotation."""
    scaling = RotaryScaling(form="yarn", factor=4.0, original_tokens=7, attention_factor=0.7)
    position = PositionConfig(rotary_fraction=0.5, value_rope=rope, scaling=scaling)
    layer = make("Q-K=V@rotary@w1", position).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert layer.k_proj is not None
    torch.testing.assert_close(layer(x), layer.o_proj(layer.k_proj(x)))


def test_a_cache_of_positions_that_depend_on_the_length_has_one() -> None:
    scaling = RotaryScaling(form="dynamic", factor=2.0, original_tokens=3)
    position = PositionConfig(rotary_fraction=1.0, scaling=scaling)
    layer, x = make("QKV@rotary", position, 8).double(), torch.randn(1, 7, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match="expected max_tokens for a layer whose rotary positions"):
        LayerCache(layer.config)
    cache = LayerCache(layer.config, max_tokens=7)
    parts = [layer(part, cache=cache) for part in x.split(2, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x))


POSITIONS = (
    PositionConfig(),
    PositionConfig(rotary_base=500.0),
    PositionConfig(rotary_fraction=1.0),
    PositionConfig(value_rope="none"),
    PositionConfig(scaling=RotaryScaling(form="linear", factor=3.0, query_growth=0.5)),
)


def test_layers_share_a_rotation_only_if_they_rotate_alike() -> None:
    layout, x = Layout(new_tokens=5), torch.randn(2, 5, 12, dtype=torch.float64)
    rotations: set[int] = set()
    for position in POSITIONS:
        for dtype in (torch.float64, torch.float32):
            layer = make("Q-K=V@rotary", position).to(dtype)
            assert torch.equal(layer(x.to(dtype), layout=layout), layer(x.to(dtype)))
            rotation = layout.rotation(layer.config, dtype)
            assert rotation is layout.rotation(layer.config, dtype)
            rotations.add(id(rotation))
    assert len(rotations) == 2 * len(POSITIONS)
