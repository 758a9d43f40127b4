"""The sublayers of a block are dropped at their own rates."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.networks import BlockConfig, NormPlacement
from qkvary.nn import blocks
from qkvary.nn.blocks import Block
from qkvary.nn.layout import Layout


@pytest.mark.parametrize("placement", get_args(NormPlacement))
@pytest.mark.parametrize(("own", "expected"), [(None, [0.1, 0.1]), (0.2, [0.1, 0.2])])
def test_the_feed_forward_network_may_have_its_own_dropout(
    placement: NormPlacement,
    own: float | None,
    expected: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[float] = []

    def drop(x: Tensor, rate: float, training: bool) -> Tensor:
        assert training
        rates.append(rate)
        return x

    block = Block(
        AttentionConfig(d_model=6, num_heads=2),
        BlockConfig(d_ff=5, norm_placement=placement, dropout=0.1, feed_forward_dropout=own),
    )
    for parameter in block.parameters():
        torch.nn.init.ones_(parameter)
    monkeypatch.setattr(blocks.F, "dropout", drop)
    block(torch.ones(1, 3, 6), layout=Layout(new_tokens=3))
    # The feed-forward network's own, before its nonlinearity, is none.
    assert [rate for rate in rates if rate] == expected
