"""``+`` in its reduced form equals the published construction in float64, gradients included."""

from typing import Any

import pytest
import torch

from qkvary.arch.attention import PositionConfig
from tests.contracts.test_attention_equals_reference import compare
from tests.contracts.variant_cases import GATE, MASKED, TOKENS, distance, make_config, padding_mask
from tests.reference.positions import plus_table
from tests.reference.published_plus import make_table

FEATURES = (1, 2, 10, 20, 50)
ROW_ONLY = {1: 1, 2: 2, 10: 6, 20: 10, 50: 26}
"""How many channels of the sinusoid depend on the row alone, for each m."""


@pytest.mark.parametrize(("features", "per_head"), [(1, True), (20, True), (50, False)])
def test_outputs_and_gradients_are_equal(features: int, per_head: bool) -> None:
    position = PositionConfig(plus_features=features, plus_per_head=per_head)
    padded: dict[str, Any] = {"attention_mask": padding_mask()}
    for causal, call in ((True, MASKED), (False, MASKED), (False, padded)):
        config = make_config("(Q=K-V)+", causal=causal, position=position)
        assert compare(config, **call) < GATE


@pytest.mark.parametrize("features", FEATURES)
def test_channels_depend_on_the_row_or_on_the_column(features: int) -> None:
    config = PositionConfig(plus_features=features)
    rows, columns = config.plus_row_features, config.plus_column_features
    assert (rows, columns) == (ROW_ONLY[features], features - ROW_ONLY[features])
    for i, j in ((0, 5), (3, 2), (6, 6)):
        assert plus_table(i, j, features)[:rows] == plus_table(i, j + 4, features)[:rows]
        assert plus_table(i, j, features)[rows:] == plus_table(i + 4, j, features)[rows:]


def test_the_asymmetry_has_no_joint_term() -> None:
    """Before the softmax, s_ij - s_ji of the published form is h(j) - h(i) for some h."""
    weight = torch.randn(10, generator=torch.Generator().manual_seed(61), dtype=torch.float64)
    published = (make_table(TOKENS, 10, torch.float64) * weight).sum(dim=-1)
    difference = published - published.T
    assert difference.abs().max() > 0.1
    assert distance(difference[:, :1] + difference[:1, :], difference) < GATE
