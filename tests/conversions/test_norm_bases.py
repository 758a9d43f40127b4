"""Norms and changes of basis: Lemma 8.1, Theorem 8.2, Remarks 5 to 7."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.storage.errors import UsageError
from tests.conversions.rewrites.test_absorb_skip import draw
from tests.studies_scripts.loading import load_script

KINDS = ("layernorm", "rmsnorm", "tanh")
script = load_script("why", "norm_bases")


def normalise(kind: str, x: Tensor) -> Tensor:
    """The norms, written out."""
    if kind == "tanh":
        return (x.exp() - (-x).exp()) / (x.exp() + (-x).exp())
    centred = x - x.mean(dim=-1, keepdim=True) if kind == "layernorm" else x
    return centred / ((centred**2).mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def curvature(basis: Any, width: int) -> float:
    """Relative error of the best linear map for g, fitted and measured on the same inputs."""
    x = draw(8 * width, width, seed=7)
    found = basis.transfer(x)
    linear = torch.linalg.lstsq(x, found).solution
    return float((x @ linear - found).norm() / found.norm())


@given(kind=st.sampled_from(KINDS), width=st.integers(2, 20), seed=st.integers(0, 999))
def test_what_a_norm_reads_is_in_the_basis(kind: str, width: int, seed: int) -> None:
    matrix = draw(width, width, seed=seed)
    basis = script.find_norm_basis(kind, matrix)
    x = 3 * draw(11, width, seed=seed + 1)
    wanted = normalise(kind, x) @ matrix
    found = normalise(kind, basis.transfer(x))
    # The gain after the norm undoes D: what follows reads phi(x) T.
    scale = wanted.abs().max()
    assert float((found / basis.scale - wanted).abs().max() / scale) < 1e-7
    assert float((found - wanted * basis.scale).abs().max()) < 1e-9
    if kind == "layernorm":
        shifted = basis.transfer(x) + draw(11, 1, seed=seed + 2)
        assert float((normalise(kind, shifted) - found).abs().max()) < 1e-9


def test_a_scale_with_a_zero_is_refused() -> None:
    own = torch.tensor([1.0, 0.0, 2.0]).double()
    matrix = torch.eye(3).double()
    # T takes (1, 0, 2) to ones, so that T^-1 1 has a zero.
    matrix[:, 0], matrix[:, 2] = torch.tensor([1.0, -1.0, 0.0]), torch.tensor([0.0, 1.0, 0.5])
    assert torch.equal(matrix @ own, torch.ones(3).double())
    with pytest.raises(UsageError, match=r"T\^-1 1 without zeros for LayerNorm"):
        script.find_norm_basis("layernorm", matrix)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_the_function_is_nearer_to_linear_in_more_dimensions(kind: str) -> None:
    errors = [
        curvature(script.find_norm_basis(kind, draw(width, width) / width**0.5), width)
        for width in (8, 32, 128)
    ]
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2] > 0


def test_no_network_leads_into_the_basis_exactly() -> None:
    basis = script.find_norm_basis("rmsnorm", draw(8, 8))
    found = script.measure_transfer(basis, d_ff=32, steps=150, batch=128)
    # Better than any linear map, and far from rounding.
    assert 0.1 < found.network < 0.9 * found.linear
