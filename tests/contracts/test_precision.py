"""Kernels and the cache agree as far as each dtype allows, measured against float64."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor

from qkvary.nn.cache import KVCache
from qkvary.nn.kernels import normalise_diagonal
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    DECISIVE,
    distance,
    make_config,
    make_language_model_config,
    randomize,
)

# Largest difference over the deviation of the logits, and largest KL divergence of a position.
CEILINGS = {
    torch.float32: (2e-5, 1e-9),
    torch.float16: (2e-2, 5e-5),
    torch.bfloat16: (0.15, 3e-3),
}


def divergence(found: Tensor, expected: Tensor) -> float:
    """The largest KL(expected || found) over positions."""
    p, q = expected.double().log_softmax(dim=-1), found.double().log_softmax(dim=-1)
    return float((p.exp() * (p - q)).sum(dim=-1).max())


def run_all(model: LanguageModel, sdpa: LanguageModel, tokens: Tensor) -> dict[str, Tensor]:
    """The logits by three routes that are one function."""
    cache = KVCache(model.config.layers)
    with torch.no_grad():
        cached = [model(part, cache=cache) for part in tokens.split([5, 1, 1, 4], dim=1)]
        return {"whole": model(tokens), "sdpa": sdpa(tokens), "cached": torch.cat(cached, dim=1)}


@pytest.mark.parametrize("dtype", CEILINGS, ids=str)
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


@pytest.mark.parametrize("dtype", CEILINGS, ids=str)
@pytest.mark.parametrize("label", [*DECISIVE, "Q-K=V@rotary", "Q=K=V@rotary"])
def test_routes_agree(label: str, dtype: torch.dtype) -> None:
    config = make_language_model_config(label)
    model = LanguageModel(config)
    randomize(model, seed=139)
    layer = make_config(label, causal=True, kernel="sdpa")
    sdpa = LanguageModel(dataclasses.replace(config, attention=layer))
    sdpa.load_state_dict(model.state_dict())
    tokens = torch.arange(22).view(2, 11) % 13
    low = run_all(copy.deepcopy(model).to(dtype), sdpa.to(dtype), tokens)
    # The reference has the rounded weights, so that only the computation is judged.
    reference = copy.deepcopy(model).to(dtype).double()
    with torch.no_grad():
        exact = reference(tokens)
    ceiling, most = CEILINGS[dtype]
    errors = {name: distance(logits.double(), exact) for name, logits in low.items()}
    for name, logits in low.items():
        assert errors[name] <= ceiling
        assert divergence(logits, exact) <= most
        apart = distance(logits.double(), low["whole"].double())
        assert apart <= min(ceiling, 4 * max(errors[name], errors["whole"]))
