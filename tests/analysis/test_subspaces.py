"""What keys and values share: each figure against features of all tokens."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.analysis import subspaces
from qkvary.analysis.subspaces import HeadMoments
from tests.reference import analysis as reference

TOKENS = 23


class Features(NamedTuple):
    """Keys, values and queries of all tokens, the output, and the moments made of them."""

    keys: reference.Array
    values: reference.Array
    queries: reference.Array
    output: reference.Array
    covariance: reference.Array
    weights: tuple[reference.Array, reference.Array]
    moments: HeadMoments


def make_features(d_model: int, size: int, seed: int) -> Features:
    draws = np.random.default_rng(seed)
    inputs = draws.normal(size=(TOKENS, d_model)) @ draws.normal(size=(d_model, d_model)) + 1.0
    keys, values = draws.normal(size=(2, d_model, size))
    queries = draws.normal(size=(TOKENS, size)) @ draws.normal(size=(size, size))
    output = draws.normal(size=(size, d_model))
    covariance = np.cov(inputs.T, bias=True).reshape(d_model, d_model)
    factor = np.linalg.cholesky(covariance + 1e-12 * np.eye(d_model)).T
    moments = HeadMoments(
        *map(
            torch.from_numpy,
            (factor @ keys, factor @ values, queries.T @ queries / TOKENS, output @ output.T),
        )
    )
    features = (inputs @ keys, inputs @ values, queries, output, covariance, (keys, values))
    return Features(*features, moments)


@given(d_model=st.integers(4, 11), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_figures_equal_the_reference(d_model: int, size: int, seed: int) -> None:
    found = make_features(d_model, size, seed)
    moments = found.moments
    weights = subspaces.principal_cosines(*map(torch.from_numpy, found.weights))
    assert weights.numpy() == pytest.approx(reference.principal_cosines(*found.weights), abs=1e-9)
    tokens = subspaces.principal_cosines(moments.keys, moments.values)
    features = reference.centred(found.keys), reference.centred(found.values)
    assert tokens.numpy() == pytest.approx(reference.principal_cosines(*features), abs=1e-7)
    plain = subspaces.kernel_alignment(moments.keys, moments.values)
    assert plain == pytest.approx(reference.kernel_alignment(found.keys, found.values), rel=1e-7)
    explained = reference.explained_share(found.keys, found.values, found.output)
    assert subspaces.explained_share(moments) == pytest.approx(explained, abs=1e-8)
    spectrum = subspaces.joint_spectrum(
        moments.keys @ subspaces.square_root(moments.queries),
        moments.values @ subspaces.square_root(moments.outputs),
    )
    readers = found.queries.T @ found.queries / TOKENS, found.output @ found.output.T
    expected = reference.joint_spectrum(found.covariance, *found.weights, *readers)
    padded = np.pad(expected, (0, max(0, 2 * size - len(expected))))[: 2 * size]
    assert spectrum.numpy() == pytest.approx(padded, abs=1e-8)
    lost = sum(value**2 for value in expected[size:])
    assert subspaces.lost_share(spectrum, size) == pytest.approx(lost, abs=1e-8)


FACTOR = torch.diag(torch.tensor([9.0, 3.0, 1.0, 1.0, 0.5], dtype=torch.float64))


def test_chance_is_the_mean_of_random_weights_on_the_same_tokens() -> None:
    weights = subspaces.draw_weights(5, 2, torch.Generator().manual_seed(5))
    chance = subspaces.sample_chance(*(FACTOR @ weight for weight in weights))
    found = []
    for one, other in zip(*(weight.numpy() for weight in weights), strict=True):
        keys, values = FACTOR.numpy() @ one, FACTOR.numpy() @ other
        basis = np.linalg.qr(keys)[0]
        explained = (np.linalg.norm(basis.T @ values) / np.linalg.norm(values)) ** 2
        found.append(((reference.principal_cosines(keys, values) ** 2).mean(), explained))
    assert len(found) == subspaces.SAMPLES
    assert chance == pytest.approx(np.mean(found, axis=0))
    # Tokens that use few directions make any two weights look alike.
    assert chance[0] > 2 / 5


def test_read_chance_is_of_random_directions_with_the_own_singular_values() -> None:
    weights = subspaces.draw_weights(5, 2, torch.Generator().manual_seed(5))
    turned = [torch.linalg.qr(weight).Q for weight in weights]
    scales = torch.tensor([[3.0, 0.5], [1.0, 0.2]], dtype=torch.float64)
    chance = subspaces.sample_read_chance(
        FACTOR @ turned[0], FACTOR @ turned[1], (scales[0], scales[1])
    )
    found = []
    for keys, values in zip(*(one.numpy() for one in turned), strict=True):
        moments = [np.diag(scale.numpy() ** 2) for scale in scales]
        spectrum = reference.joint_spectrum(FACTOR.numpy() ** 2, keys, values, *moments)
        seen, read = (
            FACTOR.numpy() @ one @ np.diag(scale.numpy())
            for one, scale in zip((keys, values), scales, strict=True)
        )
        norms = [np.linalg.norm(one) ** 2 for one in (seen.T @ read, seen.T @ seen, read.T @ read)]
        found.append((norms[0] / np.sqrt(norms[1] * norms[2]), (spectrum[2:] ** 2).sum()))
    assert tuple(chance) == pytest.approx(np.mean(found, axis=0))


def test_random_weights_with_readers_of_few_directions_lose_what_chance_loses() -> None:
    draws, channels = torch.Generator().manual_seed(1), 6
    preferred = torch.diag(torch.logspace(0, -1, channels, dtype=torch.float64))
    factor = torch.diag(torch.linspace(2, 0.5, 20, dtype=torch.float64))
    found, expected = [], []
    for _ in range(8):
        weights = subspaces.draw_weights(20, channels, draws)
        turned = [torch.linalg.qr(one).Q for one in subspaces.draw_weights(20, channels, draws)]
        for key, value in zip(*(weight @ preferred for weight in weights), strict=True):
            spectrum = subspaces.joint_spectrum(factor @ key, factor @ value)
            found.append(subspaces.lost_share(spectrum, channels))
            scales = torch.linalg.svdvals(key), torch.linalg.svdvals(value)
            chance = subspaces.sample_read_chance(factor @ turned[0], factor @ turned[1], scales)
            expected.append(chance[1])
    assert np.mean(expected) == pytest.approx(np.mean(found), rel=0.05)
