"""The softmax core of attention in two implementations that agree: explicit products, and SDPA.

Both take fewer KV heads than query heads without copying keys. Which one is used follows from
shapes alone (``choose_kernel``), so that a run does not depend on a measurement.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.arch.attention import AttentionConfig

Chosen = Literal["explicit", "sdpa"]


def choose_kernel(config: AttentionConfig, num_keys: int, *, has_bias: bool) -> Chosen:
    """Pick the implementation for a call.

    Args:
        config: The layer; its ``kernel`` pins the choice.
        num_keys: Keys of the call.
        has_bias: Whether scores get a term that is learned.
    """
    if config.variant.diagonal != "none":
        return "explicit"
    if config.kernel != "auto":
        return config.kernel
    return "explicit" if has_bias or num_keys <= 64 else "sdpa"


def block_scores(
    scores: Float[Tensor, "*shape"], blocked: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*shape"]:
    """Give blocked pairs the lowest finite score: exactly no weight, and no NaN in empty rows."""
    if blocked is None:
        return scores
    return scores.masked_fill(blocked, torch.finfo(scores.dtype).min)


def content_scores(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Float[Tensor, "batch heads queries keys"]:
    """The products q . k of each query head with the key head of its group."""
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if heads == kv_heads:
        return query @ key.mT
    folded = query.reshape(batch, kv_heads, heads // kv_heads * queries, -1)
    return (folded @ key.mT).view(batch, heads, queries, keys)


def mix_values(
    weights: Float[Tensor, "batch heads queries keys"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Float[Tensor, "batch heads queries head_dim"]:
    """The weighted sums of the values of each query head's group."""
    batch, heads, queries, keys = weights.shape
    kv_heads = value.shape[1]
    if heads == kv_heads:
        return weights @ value
    folded = weights.reshape(batch, kv_heads, heads // kv_heads * queries, keys)
    return (folded @ value).view(batch, heads, queries, -1)


def attend_sdpa(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    bias: Float[Tensor, "..."] | None,
    plain_causal: bool,
    dropout: float,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """``torch.nn.functional.scaled_dot_product_attention``; the scale is already in the query."""
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=bias,
        dropout_p=dropout,
        is_causal=plain_causal,
        scale=1.0,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def normalise_diagonal(
    scores: Float[Tensor, "batch heads queries keys"],
    squares: Float[Tensor, "batch heads keys"],
    config: AttentionConfig,
    *,
    valid: Bool[Tensor, "batch keys"] | None,
    documents: Int[Tensor, "batch keys"] | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """Divide the diagonal of K K^T by its mean or by its norm over the tokens.

    Over all tokens this would leak the future, so causal layers use the running mean or norm.

    Args:
        scores: Scaled content scores.
        squares: The whole diagonal, scale included.
        config: The layer.
        valid: True for real tokens, False for padding.
        documents: The document of each token; the mean and the norm are those of a document.

    Source: Kayyam et al. 2026, appendix A.2, figure 5.
    """
    by_norm = config.variant.diagonal == "norm"
    present = torch.ones_like(squares) if valid is None else valid[:, None].to(squares.dtype)
    terms = (squares.square() if by_norm else squares) * present
    total = _sum_diagonal(terms, documents, causal=config.causal)
    count = _sum_diagonal(present, documents, causal=config.causal)
    scale = total.sqrt() if by_norm else total / count.clamp(min=1.0)
    tiny = torch.finfo(scores.dtype).tiny
    ratio = squares / scale.clamp(min=tiny)
    queries, keys = scores.shape[-2:]
    own = torch.eye(keys, dtype=torch.bool, device=scores.device)[keys - queries :]
    return torch.where(own, ratio[..., None, :], scores)


def _sum_diagonal(
    terms: Float[Tensor, "batch heads keys"],
    documents: Int[Tensor, "batch keys"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "batch heads sums"]:
    """The sum over the tokens of each token's document, causal layers: so far."""
    if documents is None:
        return terms.cumsum(dim=-1) if causal else terms.sum(dim=-1, keepdim=True)
    same = (documents[:, None, :, None] == documents[:, None, None, :]).to(terms.dtype)
    return (terms[..., None, :] * (same.tril() if causal else same)).sum(dim=-1)
