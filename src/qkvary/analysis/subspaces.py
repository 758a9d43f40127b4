"""What keys and values have in common, whatever basis a head has.

Query and key of a head may change their basis together without changing a score, and value and
output together without changing an output. Every figure here but plain CKA stays the same then.
A constant added to all keys or values needs no cache, so that tokens are read around their mean.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

SAMPLES = 8
"""Pairs of random weights behind each sampled value."""

Matrix = Float[Tensor, "rows columns"]


class HeadMoments(NamedTuple):
    """One KV head and what the tokens, the queries and the output make of it.

    ``keys`` stands for X W_K: it is F W_K with F^T F the covariance of the layer input, so that
    its products are those of the keys of all tokens.
    """

    keys: Float[Tensor, "d_model head_dim"]
    """F W_K."""
    values: Float[Tensor, "d_model head_dim"]
    """F W_V."""
    queries: Float[Tensor, "head_dim head_dim"]
    """M_q: the second moment of the queries of the group, score scale included, added up."""
    outputs: Float[Tensor, "head_dim head_dim"]
    """M_o: W_O W_O^T, added up over the query heads of the group."""


class Chance(NamedTuple):
    """The values of two independent random weights on the same tokens: means of samples."""

    overlap: float
    """Of ``mean_square`` of the principal cosines."""
    similarity: float
    """Of ``kernel_alignment``."""
    explained: float
    """Of ``explained_share``."""
    lost: float
    """Of ``lost_share``."""


def principal_cosines(one: Matrix, other: Matrix) -> Float[Tensor, " angles"]:
    """Return the cosines of the principal angles between two column spaces, the largest first."""
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
    """Return the mean of the squares, 0 for none."""
    return float(cosines.square().mean()) if len(cosines) else 0.0


def kernel_alignment(one: Matrix, other: Matrix) -> float:
    """Return linear CKA of two sets of centred features: |A^T B|^2 / (|A^T A| |B^T B|).

    Source: Kornblith et al. 2019, "Similarity of Neural Network Representations Revisited".
    """
    norms = _norm(one.mT @ one) * _norm(other.mT @ other)
    return _norm(one.mT @ other) ** 2 / norms if norms else 0.0


def explained_share(head: HeadMoments) -> float:
    """Return how much of the value's output a linear map M of the key gives.

    The map is the least squares solution of V ~ K M, which W_O absorbs, and shares are of the mean
    square of V W_O around its mean: ``1 - |(V - K M) W_O|^2 / |V W_O|^2``.
    """
    values = head.values @ square_root(head.outputs)
    total = _norm(values) ** 2
    return _norm(orthonormal_basis(head.keys).mT @ values) ** 2 / total if total else 0.0


def joint_spectrum(head: HeadMoments) -> Float[Tensor, " values"]:
    """Return the singular values of C^1/2 [W_K M_q^1/2, W_V M_o^1/2], both halves of equal energy.

    One tensor of r channels that serves as key and value gives the best approximation of rank r
    (Eckart and Young): what scores and outputs lose is the energy of the other singular values.
    Squares add up to 1.
    """
    halves = (head.keys @ square_root(head.queries), head.values @ square_root(head.outputs))
    scaled = [half / norm if (norm := _norm(half)) else half for half in halves]
    values = torch.linalg.svdvals(torch.cat(scaled, dim=1))
    total = float(values.square().sum()) ** 0.5
    return values / total if total else values


def lost_share(spectrum: Float[Tensor, " values"], channels: int) -> float:
    """Return the share of the energy beyond the first singular values."""
    return float(spectrum[channels:].square().sum())


def square_root(matrix: Float[Tensor, "size size"]) -> Float[Tensor, "size size"]:
    """Return the symmetric square root of a positive semidefinite matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def sample_chance(
    factor: Float[Tensor, "d_model d_model"], channels: int, generator: torch.Generator
) -> Chance:
    """Return the figures of independent random weights on the same tokens.

    The weights have independent normal entries; queries and outputs have the unit matrix as second
    moment.

    Args:
        factor: F with F^T F the covariance of the layer input.
        channels: Channels of a head.
        generator: Draws the weights, on the CPU.
    """
    unit = torch.eye(channels, dtype=factor.dtype, device=factor.device)
    found: list[Chance] = []
    for _ in range(SAMPLES):
        shape = (len(factor), 2 * channels)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        keys, values = (factor @ drawn.to(factor)).chunk(2, dim=1)
        head = HeadMoments(keys, values, unit, unit)
        found.append(
            Chance(
                overlap=mean_square(principal_cosines(keys, values)),
                similarity=kernel_alignment(keys, values),
                explained=explained_share(head),
                lost=lost_share(joint_spectrum(head), channels),
            )
        )
    return Chance(*(sum(values) / len(values) for values in zip(*found, strict=True)))


def _norm(matrix: Matrix) -> float:
    return float(torch.linalg.matrix_norm(matrix))
