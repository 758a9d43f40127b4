"""The forecast of tying: the best tensor, by linear algebra and against the loss itself."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import read_window
from qkvary.analysis.tying import DAMPING, cross_forecast, forecast_tie
from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.role_maps import make_role_maps
from tests.reference import analysis as reference


def draw_moments(size: int, seed: int) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(seed)
    found: list[Tensor] = []
    for _ in range(2):
        factor = draws.normal(size=(2 * size, 3 * size)) * draws.uniform(0.2, 3, (2 * size, 1))
        found.append(torch.from_numpy(factor @ factor.T / (3 * size)))
    return found[0], found[1]


def damp(moments: reference.Array, curvature: reference.Array) -> reference.Array:
    size = len(moments) // 2
    share = DAMPING * np.trace(moments @ curvature) / (2 * size)
    damped = curvature.copy()
    for part in (slice(0, size), slice(size, None)):
        damped[part, part] += share * np.linalg.inv(moments[part, part])
    return damped


@given(size=st.integers(1, 5), seed=st.integers(0, 99))
def test_forecast_equals_the_reference(size: int, seed: int) -> None:
    moments, curvature = draw_moments(size, seed)
    damped = damp(moments.numpy(), curvature.numpy())
    roots = reference.square_root(moments.numpy()), reference.square_root(damped)
    values = np.linalg.svd(roots[0] @ roots[1], compute_uv=False)
    found = forecast_tie(moments, curvature)
    assert found.forecast == pytest.approx((values[size:] ** 2).sum() / 2, rel=1e-8)


@given(size=st.integers(1, 4), seed=st.integers(0, 99))
def test_no_other_tensor_costs_less(size: int, seed: int) -> None:
    """For z made of any tensor z S of ``size`` channels and the best maps back."""
    moments, curvature = (part.numpy() for part in draw_moments(size, seed))
    damped = damp(moments, curvature)
    found = forecast_tie(torch.from_numpy(moments), torch.from_numpy(curvature)).forecast
    draws = np.random.default_rng(seed)
    for _ in range(20):
        chosen = draws.normal(size=(2 * size, size))
        covered = moments @ chosen @ np.linalg.inv(chosen.T @ moments @ chosen) @ chosen.T @ moments
        assert found <= np.trace(damped @ (moments - covered)) / 2 + 1e-12


def test_a_forecast_is_read_on_text_that_did_not_choose_the_tensor() -> None:
    """On average over texts it is the cost that their tensors have; by its own text far less."""
    moments, curvature = draw_moments(4, 3)
    factor = torch.linalg.cholesky(curvature)
    draws = torch.Generator().manual_seed(0)
    crossed, fitted, real = [], [], []
    for _ in range(200):
        halves = []
        for _ in range(2):
            gradients = torch.randn(12, 8, generator=draws, dtype=torch.float64) @ factor.mT
            halves.append(gradients.mT @ gradients / 12)
        ties = [forecast_tie(moments, half) for half in halves]
        crossed.append(cross_forecast(moments, (halves[0], halves[1])))
        fitted.append(sum(tie.forecast for tie in ties) / 2)
        real.append(sum(float((tie.error * curvature).sum()) for tie in ties) / 4)
    mean = {name: sum(some) / 200 for name, some in (("real", real), ("fitted", fitted))}
    assert sum(crossed) / 200 == pytest.approx(mean["real"], rel=0.05)
    assert mean["fitted"] < 0.5 * mean["real"]


class Tied(nn.Module):
    """A projection with other weights, around the mean of its input."""

    def __init__(self, weight: Tensor, mean: Tensor, old: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.float())
        self.bias = nn.Parameter(((old - weight) @ mean).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def tie(network: LanguageModel, layer: int, statistics: LayerStatistics) -> LanguageModel:
    """A copy whose keys and values of one layer are made of one tensor a head."""
    moments = statistics.moments
    tied = copy.deepcopy(network)
    attention = tied.stack.blocks[layer].attention
    maps = make_role_maps(attention)
    size = attention.config.size_per_head
    weights: list[Tensor] = []
    for head, curvature in enumerate(moments.curvature()):
        joint = torch.cat((maps.key.weight[head], maps.value.weight[head]))
        covered = joint @ moments.covariance() @ joint.mT
        root = torch.from_numpy(reference.square_root(damp(covered.numpy(), curvature.numpy())))
        _, directions = torch.linalg.eigh(root @ covered @ root)
        kept = directions[:, size:]
        weights.append(torch.linalg.inv(root) @ kept @ kept.mT @ root @ joint)
    mean = moments.input_sum / moments.tokens
    for name, old, part in (
        ("k_proj", maps.key, slice(0, size)),
        ("v_proj", maps.value, slice(size, None)),
    ):
        new = torch.cat([weight[part] for weight in weights])
        setattr(attention, name, Tied(new, mean, old.weight.flatten(0, 1)))
    # Projections are joined, and then all have a bias or none.
    query = maps.query.weight.flatten(0, 1)
    attention.q_proj = Tied(query, mean, query)
    return tied


@torch.no_grad()
def diverge(network: LanguageModel, tied: LanguageModel, windows: list[Tensor]) -> float:
    """The mean divergence of the predictions, which is the rise of the loss on their own tokens."""
    total = 0.0
    for window in windows:
        before, after = (one(window[None]).log_softmax(dim=-1) for one in (network, tied))
        total += float((before.exp() * (before - after)).sum())
    return total / sum(map(len, windows))


def test_predictions_of_a_trained_network_change_about_as_forecast() -> None:
    """Changes of neighbouring tokens are alike, which the forecast does not know: it is low."""
    loaded = load_checkpoint("tiny")
    network = loaded.network.float().requires_grad_(requires_grad=False)
    text = (
        "Once upon a time there was a little girl named Lily. She loved to play in the park with "
        "her dog. One day, Tom saw a big red ball under the tree. He was very happy and ran home. "
        'His mom said, "You can play with it, but be careful!" The end.'
    )
    assert loaded.tokenizer is not None
    windows = [torch.tensor(loaded.tokenizer.encode(text[start:])) for start in range(0, 200, 9)]
    draws = torch.Generator().manual_seed(0)
    layers = [
        LayerStatistics(block.attention, number, 0)
        for number, block in enumerate(network.stack.blocks, start=1)
    ]
    for window in windows:
        for layer, reading in zip(layers, read_window(network, window, draws).layers, strict=True):
            layer.add(reading)
    for number in (1, 2):
        forecast = layers[number].result().forecast
        rise = diverge(network, tie(network, number, layers[number]), windows)
        assert 1 < rise / forecast < 2
