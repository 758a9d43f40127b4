"""Linear attention in float64, one pair of tokens at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor


def mix(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    decay: Tensor | None,
    divides: bool,
    decays_sum: bool,
    documents: Sequence[Sequence[int]],
    least: float = 0.0,
) -> Tensor:
    """The outputs of causal tokens from features of query and key, [batch, heads, tokens, size].

    Args:
        query: Features of the queries.
        key: Features of the keys, of fewer heads perhaps.
        value: The values.
        decay: The factor of each KV head.
        divides: Whether weights are divided by a sum.
        decays_sum: Whether that sum decays too.
        documents: The document of each token of each row.
        least: What a smaller sum counts as.
    """
    group = query.shape[1] // key.shape[1]
    rows: list[Tensor] = []
    for b in range(query.shape[0]):
        heads: list[Tensor] = []
        for h in range(query.shape[1]):
            tokens: list[Tensor] = []
            for i in range(query.shape[2]):
                mixed, total = torch.zeros_like(value[0, 0, 0]), torch.tensor(0.0).double()
                for j in range(i + 1):
                    if documents[b][i] != documents[b][j]:
                        continue
                    product = (query[b, h, i] * key[b, h // group, j]).sum()
                    weight = product
                    if decay is not None:
                        weight = product * decay[h // group] ** (i - j)
                    mixed = mixed + weight * value[b, h // group, j]
                    total = total + (weight if decays_sum else product)
                tokens.append(mixed / max(total, total.new_tensor(least)) if divides else mixed)
            heads.append(torch.stack(tokens))
        rows.append(torch.stack(heads))
    return torch.stack(rows)
