"""Effective ranks of weights, compared with the ranks of random matrices of the same shape."""

import functools
import math
from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.analysis.results import EffectiveRank, MatrixName, RankReading
from qkvary.nn.role_maps import RoleMaps

SAMPLED_NUMBERS = 2**20
MOST_SAMPLES = 64
"""Maximum number of random matrices per shape. Fewer large matrices are drawn: they have
about ``SAMPLED_NUMBERS`` entries in total."""


def read_ranks(maps: RoleMaps, *, seed: int) -> tuple[RankReading, ...]:
    """Return the effective ranks of W_Q, W_K and W_V, and per head also of W_Q W_K^T.

    W_Q, W_K and W_V are measured as a whole and per head. Each matrix is compared with random
    matrices. The random matrices depend on ``seed``.
    """
    found: list[RankReading] = []
    named: dict[MatrixName, Tensor] = {
        "query": maps.query.weight,
        "key": maps.key.weight,
        "value": maps.value.weight,
    }
    for name, weight in named.items():
        found.append(_read(name, None, weight.flatten(0, 1).mT, seed))
        found += [_read(name, head, part.mT, seed) for head, part in enumerate(weight, start=1)]
    keys = maps.key.copy_heads(len(maps.query.weight)).weight
    for head, (query, key) in enumerate(zip(maps.query.weight, keys, strict=True), start=1):
        d_model, size = query.mT.shape
        found.append(
            RankReading(
                matrix="query-key",
                head=head,
                rows=d_model,
                columns=d_model,
                found=effective_rank(product_values(query.mT, key.mT)),
                chance=sample_rank(d_model, d_model, size, seed),
            )
        )
    return tuple(found)


def effective_rank(values: Float[Tensor, " values"]) -> EffectiveRank:
    """Return the effective ranks of a matrix, given its singular values.

    All ranks of a zero matrix are zero.
    """
    values = values.sort(descending=True).values
    squares = values.square()
    total = float(squares.sum())
    if not total:
        none = {"energy_90": 0, "energy_95": 0, "energy_99": 0}
        return EffectiveRank(entropy=0.0, entropy_of_squares=0.0, participation=0.0, **none)
    energy = squares.cumsum(0) / total
    held = [int((energy < share - 1e-12).sum()) + 1 for share in (0.90, 0.95, 0.99)]
    return EffectiveRank(
        entropy=math.exp(float(torch.special.entr(values / values.sum()).sum())),
        entropy_of_squares=math.exp(float(torch.special.entr(squares / total).sum())),
        participation=total**2 / float(squares.square().sum()),
        energy_90=held[0],
        energy_95=held[1],
        energy_99=held[2],
    )


def product_values(
    left: Float[Tensor, "rows inner"], right: Float[Tensor, "columns inner"]
) -> Float[Tensor, " inner"]:
    """Return the singular values of ``left right^T`` that can be nonzero."""
    inner = torch.linalg.qr(left).R @ torch.linalg.qr(right).R.mT
    return torch.linalg.svdvals(inner)


@functools.cache
def sample_rank(rows: int, columns: int, inner: int | None, seed: int) -> EffectiveRank:
    """Return the mean effective ranks of random matrices with independent normal entries.

    If ``inner`` is given, each matrix is the product of two random matrices that share a dimension
    of this size.
    """
    numbers = rows * columns if inner is None else (rows + columns) * inner
    samples = min(max(SAMPLED_NUMBERS // numbers, 1), MOST_SAMPLES)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    ranks = [
        effective_rank(
            torch.linalg.svdvals(draw(rows, columns))
            if inner is None
            else product_values(draw(rows, inner), draw(columns, inner))
        )
        for _ in range(samples)
    ]

    return EffectiveRank(
        entropy=fmean(rank.entropy for rank in ranks),
        entropy_of_squares=fmean(rank.entropy_of_squares for rank in ranks),
        participation=fmean(rank.participation for rank in ranks),
        energy_90=round(fmean(rank.energy_90 for rank in ranks)),
        energy_95=round(fmean(rank.energy_95 for rank in ranks)),
        energy_99=round(fmean(rank.energy_99 for rank in ranks)),
    )


def _read(name: MatrixName, head: int | None, matrix: Tensor, seed: int) -> RankReading:
    rows, columns = matrix.shape
    return RankReading(
        matrix=name,
        head=head,
        rows=rows,
        columns=columns,
        found=effective_rank(torch.linalg.svdvals(matrix)),
        chance=sample_rank(rows, columns, None, seed),
    )
