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
    """Attention statistics of each head, summed over the queries of all windows."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        heads = attention.config.num_heads
        self.queries = 0
        # Entropy, distance and weight on a query's own token, for actual weights and equal ones.
        zeros = partial(torch.zeros, dtype=torch.float64, device=attention.o_proj.weight.device)
        self.sums, self.uniform_sums = zeros(3, heads), zeros(3)
        # Squared norms of the antisymmetric and the symmetric part.
        self.parts = zeros(_ASYMMETRIES, 2, heads)

    @torch.no_grad()
    def add(self, reading: LayerReading) -> Float[Tensor, "heads tokens tokens"]:
        """Add the statistics of a window, and return the attention weights of the window."""
        weights = self.attention.core.weights(reading.scores)[0]
        self.queries += weights.shape[-1]
        index = torch.arange(weights.shape[-1], device=weights.device)
        distances = (index[:, None] - index).abs().to(weights.dtype)
        self.sums += torch.stack(_describe(weights, distances))
        penalty = reading.scores.layout.penalty(self.attention.config, weights.dtype)
        # 0 for visible pairs, and nearly minus infinity for the others.
        hidden = torch.zeros_like(weights[0]) if penalty is None else penalty[0, 0]
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
        """Return the statistics of every head, averaged over the queries of all windows."""
        uniform = (self.uniform_sums / self.queries).tolist()
        parts = self.parts.cpu().permute(2, 0, 1).tolist()
        found: list[AttentionReading] = []
        for head, means in enumerate((self.sums / self.queries).mT.tolist()):
            scores, unmasked, masked, by_mask = (
                math.sqrt(antisymmetric / symmetric) if symmetric else 0.0
                for antisymmetric, symmetric in parts[head]
            )
            found.append(
                AttentionReading(
                    head=head + 1,
                    entropy=means[0],
                    uniform_entropy=uniform[0],
                    distance=means[1],
                    uniform_distance=uniform[1],
                    diagonal=means[2],
                    uniform_diagonal=uniform[2],
                    score_asymmetry=scores,
                    unmasked_asymmetry=unmasked,
                    asymmetry=masked,
                    mask_asymmetry=by_mask,
                )
            )
        return tuple(found)


def split_symmetry(matrix: Float[Tensor, "heads rows rows"]) -> Float[Tensor, "2 heads"]:
    """Return |A - A^T|^2 and |A + A^T|^2 of each head. Their sum is 4 |A|^2."""
    antisymmetric = torch.zeros(len(matrix), dtype=torch.float64, device=matrix.device)
    # Each pair once, in blocks of rows: a transposed copy of everything would be read by columns.
    for start in range(0, matrix.shape[-1], _BLOCK):
        own, rest = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
        square = matrix[:, own, own]
        antisymmetric += _add_squares(square - square.mT)
        antisymmetric += 2 * _add_squares(matrix[:, own, rest] - matrix[:, rest, own].mT)
    return torch.stack((antisymmetric, 4 * _add_squares(matrix) - antisymmetric))


def _describe(weights: Tensor, distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return entropy, distance and weight on the own token of a query, each summed over queries."""
    rows = (
        torch.special.entr(weights).sum(dim=-1),
        torch.einsum("hij,ij->hi", weights, distances),
        weights.diagonal(dim1=-2, dim2=-1),
    )
    # Rows are added up in their own dtype, which is fast, the rest in float64.
    entropy, distance, diagonal = (one.sum(dim=-1, dtype=torch.float64) for one in rows)
    return entropy, distance, diagonal


def _add_squares(matrix: Tensor) -> Float[Tensor, " heads"]:
    """Return the sum of squares of each head. Rows are summed in the dtype of the matrix."""
    return torch.linalg.vector_norm(matrix, dim=-1).square().sum(dim=-1, dtype=torch.float64)
