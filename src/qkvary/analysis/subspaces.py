"""Measures of the directions that keys and values share, independent of the basis of a head.

The basis of a head is arbitrary: if query and key change their basis together, the scores stay the
same, and if value and output change theirs together, the output stays the same. Of the measures in
this module, only plain CKA depends on the basis. The mean over tokens is subtracted first, because
an offset that all keys or all values share need not be stored for each token.
"""

from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SAMPLES = 8
"""Number of pairs of random weights whose results are averaged."""

Matrix = Float[Tensor, "rows columns"]


class HeadMoments(NamedTuple):
    """One KV head, with the statistics of its tokens, queries and output.

    F^T F is the covariance of the layer input X, so F W_K has the same second moments as the keys
    X W_K. If keys are normalised, ``keys`` and ``values`` are instead the two halves of a square
    root of the covariance of keys and values.
    """

    keys: Float[Tensor, "rows head_dim"]
    """F W_K, with the second moments of the keys."""
    values: Float[Tensor, "rows head_dim"]
    """F W_V, with the second moments of the values."""
    queries: Float[Tensor, "head_dim head_dim"]
    """M_q: the second moment of the scaled queries, summed over the query heads of the group."""
    outputs: Float[Tensor, "head_dim head_dim"]
    """M_o: W_O W_O^T, summed over the query heads of the group."""


def principal_cosines(one: Matrix, other: Matrix) -> Float[Tensor, " angles"]:
    """Return the cosines of the principal angles between two column spaces, in descending order."""
    left, right = orthonormal_basis(one), orthonormal_basis(other)
    if not min(left.shape[1], right.shape[1]):
        return one.new_zeros(0)
    return torch.linalg.svdvals(left.mT @ right).clamp(max=1.0)


def orthonormal_basis(matrix: Matrix) -> Float[Tensor, "rows rank"]:
    """Return an orthonormal basis of the column space."""
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    precision = torch.finfo(matrix.dtype).eps * max(matrix.shape)
    return left[:, values > precision * values.max()]


def mean_square(cosines: Float[Tensor, " angles"]) -> float:
    """Return the mean of the squared cosines, or 0 if there are no cosines."""
    return float(cosines.square().mean()) if len(cosines) else 0.0


def kernel_alignment(one: Matrix, other: Matrix) -> float:
    """Return linear CKA of two sets of centred features: |A^T B|^2 / (|A^T A| |B^T B|).

    Source: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited".
    """
    norms = _norm(one.mT @ one) * _norm(other.mT @ other)
    return _norm(one.mT @ other) ** 2 / norms if norms else 0.0


def explained_share(head: HeadMoments) -> float:
    """Return the share of the value's output that a linear map M predicts from the key.

    M is the least-squares solution of V ~ K M, and W_O can absorb it. The result is a share of the
    variance of V W_O: ``1 - |(V - K M) W_O|^2 / |V W_O|^2``.
    """
    values = head.values @ square_root(head.outputs)
    total = _norm(values) ** 2
    return _norm(orthonormal_basis(head.keys).mT @ values) ** 2 / total if total else 0.0


def joint_spectrum(
    seen: Float[Tensor, "*samples d_model head_dim"],
    read: Float[Tensor, "*samples d_model head_dim"],
) -> Float[Tensor, "*samples values"]:
    """Return the singular values of the matrix [``seen``, ``read``].

    ``seen`` has the keys weighted by the queries, F W_K M_q^1/2. ``read`` has the values weighted
    by the output projection, F W_V M_o^1/2. :class:`HeadMoments` defines the symbols. Both halves
    are scaled to equal energy, and the squares of all singular values add up to 1. One tensor of r
    channels for key and value keeps at most the energy of the r largest singular values (Eckart and
    Young).
    """
    least = torch.finfo(seen.dtype).tiny
    halves = [
        half / torch.linalg.matrix_norm(half, keepdim=True).clamp(min=least)
        for half in (seen, read)
    ]
    values = torch.linalg.svdvals(torch.cat(halves, dim=-1))
    values = values / torch.linalg.vector_norm(values, dim=-1, keepdim=True).clamp(min=least)
    # Heads with more than d_model / 2 channels have fewer singular values than channels.
    return torch.nn.functional.pad(values, (0, 2 * seen.shape[-1] - values.shape[-1]))


def lost_share(spectrum: Float[Tensor, " values"], channels: int) -> float:
    """Return the share of the energy beyond the first ``channels`` singular values."""
    return float(spectrum[channels:].square().sum())


def square_root(matrix: Float[Tensor, "size size"]) -> Float[Tensor, "size size"]:
    """Return the symmetric square root of a positive semidefinite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def draw_weights(
    d_model: int, channels: int, generator: torch.Generator
) -> tuple[Float[Tensor, "samples d_model channels"], Float[Tensor, "samples d_model channels"]]:
    """Return pairs of weights with independent normal entries, in float64 on the CPU."""
    shape = (SAMPLES, d_model, 2 * channels)
    one, other = torch.randn(shape, generator=generator, dtype=torch.float64).chunk(2, dim=-1)
    return one, other


def sample_chance(
    keys: Float[Tensor, "samples d_model head_dim"],
    values: Float[Tensor, "samples d_model head_dim"],
) -> tuple[float, float]:
    """Return the mean squared cosine and the mean explained share over pairs of key and value.

    The shares assume an output projection with W_O W_O^T = 1.
    """
    unit = torch.eye(keys.shape[-1], dtype=keys.dtype)
    heads = [HeadMoments(*pair, unit, unit) for pair in zip(keys, values, strict=True)]
    overlap = fmean(mean_square(principal_cosines(head.keys, head.values)) for head in heads)
    return overlap, fmean(map(explained_share, heads))


def sample_read_chance(
    keys: Float[Tensor, "samples d_model directions"],
    values: Float[Tensor, "samples d_model directions"],
    scales: tuple[Float[Tensor, " directions"], Float[Tensor, " directions"]],
) -> tuple[float, float]:
    """Return the mean similarity and the mean lost share of a head with random singular vectors.

    The singular vectors of W_K M_q^1/2 and W_V M_o^1/2 are replaced by random ones. The singular
    values, ``scales``, are kept. (A random W_K with the head's M_q would depend on the basis of the
    head.) ``keys`` and ``values`` are F U, where the columns of U are random and orthonormal.
    :class:`HeadMoments` defines the symbols.
    """
    seen, read = keys * scales[0], values * scales[1]
    channels = seen.shape[-1]
    lost = fmean(lost_share(one, channels) for one in joint_spectrum(seen, read))
    return fmean(map(kernel_alignment, seen, read)), lost


def _norm(matrix: Matrix) -> float:
    return float(torch.linalg.matrix_norm(matrix))
