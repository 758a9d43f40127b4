"""Statistics of a layer's attention (entropy, distance, asymmetry), summed over windows."""

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.analysis.observation import LayerReading
from qkvary.analysis.results import AttentionReading
from qkvary.nn.attention import Attention

_ASYMMETRIES = 4
_BLOCK = 128
"""Number of rows per block, small enough that a transposed block fits into a processor cache."""


class AttentionStatistics:
    """Sums over the queries of all windows, one value for each head."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        heads = attention.config.num_heads
        self.queries = 0
        # Entropy, distance and weight on the own token, for the actual weights and for equal ones.
        zeros = partial(torch.zeros, dtype=torch.float64, device=attention.o_proj.weight.device)
        self.sums, self.uniform_sums = zeros(3, heads), zeros(3)
        # Squared norms of the antisymmetric and the symmetric part.
        self.parts = zeros(_ASYMMETRIES, 2, heads)

    @torch.no_grad()
    def add(self, reading: LayerReading) -> Float[Tensor, "heads tokens tokens"]:
        """Add a window, and return its attention weights."""
        weights = self.attention.core.weights(reading.scores)[0]
        self.queries += weights.shape[-1]
        distances = _distances(weights)
        self.sums += torch.stack(_describe(weights, distances))
        hidden = self._find_hidden(reading, weights)
        visible = (hidden == 0).to(weights.dtype)
        uniform = visible / visible.sum(dim=-1, keepdim=True)
        self.uniform_sums += torch.stack(_describe(uniform[None], distances))[:, 0]
        scores = reading.scores.multiply()
        bias = reading.scores.cooled_pair_bias()
        scores = scores[0] if bias is None else (scores + bias)[0]
        symmetric = (scores + scores.mT) / 2 + hidden
        matrices = (scores, scores.softmax(dim=-1), weights, symmetric.softmax(dim=-1))
        self.parts += torch.stack([split_symmetry(one) for one in matrices])
        return weights

    def result(self) -> tuple[AttentionReading, ...]:
        """Return the figures of every head."""
        entropies, distances, diagonals = (self.sums / self.queries).tolist()
        uniform_entropy, uniform_distance, uniform_diagonal = (
            self.uniform_sums / self.queries
        ).tolist()
        found, parts = list[AttentionReading](), self.parts.cpu()
        for head in range(len(entropies)):
            scores, unmasked, masked, by_mask = (_divide(*part[:, head].tolist()) for part in parts)
            found.append(
                AttentionReading(
                    head=head + 1,
                    entropy=entropies[head],
                    uniform_entropy=uniform_entropy,
                    distance=distances[head],
                    uniform_distance=uniform_distance,
                    diagonal=diagonals[head],
                    uniform_diagonal=uniform_diagonal,
                    score_asymmetry=scores,
                    unmasked_asymmetry=unmasked,
                    asymmetry=masked,
                    mask_asymmetry=by_mask,
                )
            )
        return tuple(found)

    def _find_hidden(self, reading: LayerReading, weights: Tensor) -> Float[Tensor, "rows keys"]:
        """Return 0 for visible pairs, and nearly minus infinity for the others."""
        variant = self.attention.config.variant
        penalty = reading.scores.layout.penalty(
            causal=True, window=variant.window, stride=variant.stride, dtype=weights.dtype
        )
        return torch.zeros_like(weights[0]) if penalty is None else penalty[0, 0]


def split_symmetry(matrix: Float[Tensor, "heads rows rows"]) -> Float[Tensor, "2 heads"]:
    """Return |A - A^T|^2 and |A + A^T|^2 of each head; together they are 4 |A|^2."""
    antisymmetric = torch.zeros(len(matrix), dtype=torch.float64, device=matrix.device)
    # Each pair once, in blocks of rows: a transposed copy of everything would be read by columns.
    for start in range(0, matrix.shape[-1], _BLOCK):
        own, rest = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        square = matrix[:, own, own]
        antisymmetric += _add_squares(square - square.mT)
        antisymmetric += 2 * _add_squares(matrix[:, own, rest] - matrix[:, rest, own].mT)
    return torch.stack((antisymmetric, 4 * _add_squares(matrix) - antisymmetric))


def _describe(weights: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sums over queries of entropy, distance and weight of the own token, by head."""
    return (
        _add_up(torch.special.entr(weights)),
        torch.einsum("hij,ij->hi", weights, distances).sum(dim=-1, dtype=torch.float64),
        weights.diagonal(dim1=-2, dim2=-1).sum(dim=-1, dtype=torch.float64),
    )


def _add_up(matrix: Tensor) -> Float[Tensor, " heads"]:
    """Return the sum of each head: rows in their own dtype, which is fast, the rest in float64."""
    return matrix.sum(dim=-1).sum(dim=-1, dtype=torch.float64)


def _add_squares(matrix: Tensor) -> Float[Tensor, " heads"]:
    """Return the sum of squares of each head, each row in its own dtype as in :func:`_add_up`."""
    return torch.linalg.vector_norm(matrix, dim=-1).square().sum(dim=-1, dtype=torch.float64)


def _distances(weights: Tensor) -> Float[Tensor, "rows rows"]:
    index = torch.arange(weights.shape[-1], device=weights.device)
    return (index[:, None] - index).abs().to(weights.dtype)


def _divide(antisymmetric: float, symmetric: float) -> float:
    return math.sqrt(antisymmetric / symmetric) if symmetric else 0.0
