"""What leaves the range of a number format on the way to a result that does not."""

import pytest
import torch

from qkvary.nn.terms import normalise_diagonal
from tests.contracts.decoding_gates import CEILINGS, DTYPES
from tests.contracts.variant_cases import distance, make_config


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("label", ["Q=K-V@diag-mean", "Q=K-V@diag-norm"])
def test_diagonals_stay_in_range(label: str, dtype: torch.dtype) -> None:
    """The fourth powers that the norm sums leave the range of float16."""
    config = make_config(label, causal=True)
    squares = (30 + 20 * torch.rand(2, 3, 61, generator=torch.Generator().manual_seed(149))).to(
        dtype
    )
    scores = torch.zeros(2, 3, 61, 61, dtype=dtype)
    found = normalise_diagonal(scores, squares, config, valid=None, documents=None)
    exact = normalise_diagonal(
        scores.double(), squares.double(), config, valid=None, documents=None
    )
    assert float(squares.double().square().sum(dim=-1).min()) > torch.finfo(torch.float16).max
    assert found.dtype == dtype
    assert distance(found.double(), exact) <= CEILINGS[dtype][0]
