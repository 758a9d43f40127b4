"""The measures of an analysis by another hand: numpy in float64."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def centred(features: Array) -> Array:
    return features - features.mean(axis=0)


def effective_rank(matrix: Array) -> dict[str, float]:
    """All six definitions, term by term."""
    values = sorted(np.linalg.svd(matrix, compute_uv=False).tolist(), reverse=True)
    squares = [value**2 for value in values]

    def exp_entropy(terms: list[float]) -> float:
        shares = [term / sum(terms) for term in terms if term > 0]
        return math.exp(-sum(share * math.log(share) for share in shares))

    def energy(share: float) -> int:
        enough = share * sum(squares) * (1 - 1e-12)
        return next(n for n in range(1, len(squares) + 1) if sum(squares[:n]) >= enough)

    return {
        "entropy": exp_entropy(values),
        "entropy_of_squares": exp_entropy(squares),
        "participation": sum(squares) ** 2 / sum(square**2 for square in squares),
        "energy_90": energy(0.90),
        "energy_95": energy(0.95),
        "energy_99": energy(0.99),
    }


def principal_cosines(one: Array, other: Array) -> Array:
    """Of column spaces, one after the other: the best pair, then the best orthogonal to it."""
    left, right = np.linalg.qr(one)[0], np.linalg.qr(other)[0]
    found: list[float] = []
    for _ in range(min(one.shape[1], other.shape[1])):
        vectors, values, others = np.linalg.svd(left.T @ right)
        found.append(min(1.0, values[0]))
        first, second = left @ vectors[:, 0], right @ others[0]
        left, right = _without(left, first), _without(right, second)
    return np.array(found)


def _without(basis: Array, vector: Array) -> Array:
    rest = basis - np.outer(vector, vector @ basis)
    vectors, values, _ = np.linalg.svd(rest, full_matrices=False)
    return vectors[:, values > 0.5]


def explained_share(keys: Array, values: Array, output: Array) -> float:
    """By least squares over the tokens, with a constant, of what W_O makes of the values."""
    design = np.hstack((keys, np.ones((len(keys), 1))))
    mapped, *_ = np.linalg.lstsq(design, values, rcond=None)
    residual = (values - design @ mapped) @ output
    return 1 - (residual**2).sum() / (centred(values @ output) ** 2).sum()


def kernel_alignment(one: Array, other: Array) -> float:
    """CKA by its definition: the HSIC of two matrices of inner products of all pairs of tokens."""
    tokens = len(one)
    centre = np.eye(tokens) - 1 / tokens

    def hsic(left: Array, right: Array) -> float:
        return float(((centre @ left @ centre) * (centre @ right @ centre)).sum())

    left, right = one @ one.T, other @ other.T
    return hsic(left, right) / math.sqrt(hsic(left, left) * hsic(right, right))


def square_root(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.sqrt(np.maximum(values, 0))) @ vectors.T


def joint_spectrum(
    covariance: Array, keys: Array, values: Array, queries: Array, outputs: Array
) -> Array:
    """Singular values of C^1/2 [W_K M_q^1/2, W_V M_o^1/2], halves of one norm, of unit energy."""
    root = square_root(covariance)
    halves = [root @ keys @ square_root(queries), root @ values @ square_root(outputs)]
    joint = np.hstack([half / np.linalg.norm(half) for half in halves])
    found = np.linalg.svd(joint, compute_uv=False)
    return found / np.linalg.norm(found)


def asymmetry(matrices: list[Array]) -> float:
    """|A - A^T| / |A + A^T| over several matrices."""
    apart, joint = (sum(((one + sign * one.T) ** 2).sum() for one in matrices) for sign in (-1, 1))
    return math.sqrt(apart / joint)


def describe_attention(weights: Array) -> tuple[float, float, float]:
    """Mean entropy, distance and own weight of the queries of one head."""
    queries, places = len(weights), np.arange(len(weights))
    entropy = -sum(one * math.log(one) for one in weights.flat if one > 0)
    distance = (weights * abs(places[:, None] - places)).sum()
    return entropy / queries, distance / queries, weights.trace() / queries
