"""Section 4.1: the merged form of a query and a key matrix under weight decay."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.variant_cases import distance
from tests.conversions.networks import spread


@given(seed=st.integers(0, 99), condition=st.floats(1.5, 1e4))
def test_weight_decay_prefers_two_matrices(seed: int, condition: float) -> None:
    product = spread(11, condition, seed)
    merged = 11 + product.square().sum()
    left, values, right = torch.linalg.svd(product)
    query, key = left * values.sqrt(), right.mT * values.sqrt()
    assert distance(query @ key.mT, product) < 1e-12
    balanced = query.square().sum() + key.square().sum()
    # sigma^2 + 1 - 2 sigma of every singular value.
    difference = (values - 1).square().sum()
    assert abs(merged - balanced - difference) < 1e-12 * merged
    assert balanced < merged
    # No other pair has less: it is twice the nuclear norm, and a change of basis only adds.
    basis = spread(11, 3.0, seed + 1)
    moved = (query @ basis).square().sum() + (key @ torch.linalg.inv(basis).mT).square().sum()
    assert moved >= balanced * (1 - 1e-12)
    # The two are equal where all singular values are 1.
    orthogonal = left @ right
    assert abs(orthogonal.square().sum() - 11) < 1e-12 * 11
