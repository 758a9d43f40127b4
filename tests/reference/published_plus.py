"""``+`` as the papers' code computes it, on whole tensors: m copies of the map, and a 1x1 linear.

What the reduced form is proved equal to and measured against.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.positions import plus_table


def make_table(tokens: int, features: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """P of shape [tokens, tokens, m], built once and sliced, as in the published code."""
    rows = [[plus_table(i, j, features) for j in range(tokens)] for i in range(tokens)]
    return torch.tensor(rows, dtype=torch.float64).to(dtype)


def published_plus_scores(scores: Tensor, table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Scores [batch, heads, n, n] through m channels and back; ``weight`` is [1, m]."""
    channels = scores.unsqueeze(-1).expand(*scores.shape, table.shape[-1]) + table
    return F.linear(channels, weight, bias).squeeze(-1)
