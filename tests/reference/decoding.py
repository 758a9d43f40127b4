"""Attention of a few queries over stored keys in float64, one query, head and key at a time."""

import math

import torch
from torch import Tensor


def attend_stored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    start: int,
    valid: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The mixed values; zeros where a query sees nothing."""
    batch, heads, queries, _ = query.shape
    kv_heads, tokens = key.shape[1], key.shape[2]
    mixed = torch.zeros(batch, heads, queries, value.shape[3], dtype=torch.float64)
    for b in range(batch):
        real = [True] * tokens if valid is None else valid[b].tolist()
        for g in range(kv_heads):
            keys, values = key[b, g].double().unbind(), value[b, g].double().unbind()
            for h in range(g * heads // kv_heads, (g + 1) * heads // kv_heads):
                for i in range(queries):
                    seen = [j for j in range(tokens) if real[j] and j <= start + i]
                    asked, answer = query[b, h, i].double(), mixed[b, h, i]
                    added = [0.0] * tokens if bias is None else bias[b, h, i].tolist()
                    scores = [float(asked @ keys[j]) * scale + added[j] for j in seen]
                    for weight, j in zip(_softmax(scores), seen, strict=True):
                        answer.add_(values[j], alpha=weight)
    return mixed


def _softmax(scores: list[float]) -> list[float]:
    if not scores:
        return []
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
