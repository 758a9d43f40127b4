"""Effective ranks against sums term by term, and the values of random matrices."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.analysis.ranks import effective_rank, read_ranks, sample_rank
from qkvary.nn.role_maps import make_role_maps
from tests.analysis.networks import make_network
from tests.reference import analysis as reference


@given(
    rows=st.integers(2, 13),
    columns=st.integers(1, 11),
    rank=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_ranks_equal_the_reference(rows: int, columns: int, rank: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    matrix = draws.normal(size=(rows, rank)) @ draws.normal(size=(rank, columns))
    found = asdict(effective_rank(torch.linalg.svdvals(torch.from_numpy(matrix))))
    assert found == pytest.approx(reference.effective_rank(matrix), rel=1e-6)


@pytest.mark.slow
def test_random_matrices_of_the_published_shape() -> None:
    """Gaussian matrices, 1024 x 1024; the printed effective ranks are 687 and 702."""
    found = sample_rank(1024, 1024, None, 0)
    assert found.entropy == pytest.approx(824, abs=1)
    assert found.entropy_of_squares == pytest.approx(621, abs=1)
    assert found.participation == pytest.approx(511.75, abs=1.5)
    energies = (found.energy_90, found.energy_95, found.energy_99)
    assert energies == pytest.approx((523, 625, 790), abs=1)


def test_every_matrix_of_a_layer_is_read() -> None:
    maps = make_role_maps(make_network("GQA-2", d_model=24, heads=4).stack.blocks[0].attention)
    ranks = {(rank.matrix, rank.head): rank for rank in read_ranks(maps, seed=3)}
    assert [name for name, head in ranks if head is None] == ["query", "key", "value"]
    heads = {"query": 4, "key": 2, "value": 2, "query-key": 4}
    for name, count in heads.items():
        assert sum(matrix == name and head is not None for matrix, head in ranks) == count
    whole = ranks["key", None]
    assert (whole.rows, whole.columns) == (24, 12)
    weight = maps.key.weight.flatten(0, 1).mT.numpy()
    assert asdict(whole.found) == pytest.approx(reference.effective_rank(weight))
    # Query heads 3 and 4 read the second key head.
    product = (maps.query.weight[2].mT @ maps.key.weight[1]).numpy()
    assert asdict(ranks["query-key", 3].found) == pytest.approx(
        reference.effective_rank(product), rel=1e-6
    )
    assert asdict(ranks["query-key", 3].chance) != asdict(whole.chance)
