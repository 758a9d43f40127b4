"""The softmax core of attention in two implementations that agree: explicit products, and SDPA.

Both take fewer KV heads than query heads without copying keys. Which one is used follows from the
configuration and the shapes (``choose_kernel``), so that a run does not depend on a measurement.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.arch.attention import AttentionConfig

Chosen = Literal["explicit", "sdpa"]


LONGEST_EXPLICIT = 512
"""Keys up to which a whole map of scores costs less than what the fused kernel lacks."""


def choose_kernel(config: AttentionConfig, num_keys: int, *, training: bool) -> Chosen:
    """Pick the implementation for a call.

    On a CPU, SDPA is fused only without dropout and without a bias that is learned. There it needs
    0.5 to 0.95 times the time of explicit products, forward and backward, from 8 keys to 512, from
    8 channels a head to 64, masked or causal or with fewer KV heads. Elsewhere it needs 1.1 to 1.4
    times that time, until the map outgrows the processor's caches.

    Args:
        config: The layer; its ``kernel`` pins the choice.
        num_keys: Keys of the call.
        training: Whether the call drops attention weights out, where the layer does so at all.
    """
    if config.variant.diagonal != "none":
        return "explicit"
    if config.kernel != "auto":
        return config.kernel
    has_bias = config.variant.plus or config.variant.positions == "relative"
    unfused = has_bias or (training and config.dropout > 0.0)
    return "explicit" if unfused and num_keys <= LONGEST_EXPLICIT else "sdpa"


def content_scores(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Float[Tensor, "batch heads queries keys"]:
    """The products q . k of each query head with the key head of its group."""
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if heads == kv_heads:
        return query @ key.mT
    folded = query.reshape(batch, kv_heads, heads // kv_heads * queries, query.shape[-1])
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
    return (folded @ value).view(batch, heads, queries, value.shape[-1])


def append_key_bias(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    bias: Float[Tensor, "rows keys sets"],
    factor: float,
) -> tuple[
    Float[Tensor, "batch heads queries extended_dim"],
    Float[Tensor, "batch kv_heads keys extended_dim"],
]:
    """Extend query and key so that their products get ``factor`` times a bias of the key.

    [q, c] . [k, g] = q . k + c g, so that the bias needs no pass over the map of scores, neither
    forward nor backward. It takes one channel, or one for each query head of a group where heads
    have biases of their own.
    """
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    channels = max(1, bias.shape[-1] // kv_heads)
    own = torch.eye(channels, dtype=query.dtype, device=query.device) * factor
    constant = own[:, None].expand(batch, heads // channels, channels, queries, channels)
    added = bias.unflatten(-1, (-1, channels)).transpose(1, 2)
    added = added.expand(batch, kv_heads, keys, channels)
    return torch.cat((query, constant.flatten(1, 2)), dim=-1), torch.cat((key, added), dim=-1)


def attend_sdpa(
    query: Float[Tensor, "batch heads queries key_dim"],
    key: Float[Tensor, "batch kv_heads keys key_dim"],
    value: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    bias: Float[Tensor, "..."] | None,
    plain_causal: bool,
    dropout: float,
    scale: float = 1.0,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """``torch.nn.functional.scaled_dot_product_attention``, also for keys wider than values."""
    wider = key.shape[-1] - value.shape[-1]
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        # Fused kernels want one width.
        F.pad(value, (0, wider)) if wider else value,
        attn_mask=bias,
        dropout_p=dropout,
        is_causal=plain_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return mixed[..., : value.shape[-1]] if wider else mixed


def normalise_diagonal(
    scores: Float[Tensor, "batch heads queries keys"],
    squares: Float[Tensor, "batch heads keys"],
    config: AttentionConfig,
    *,
    valid: Bool[Tensor, "batch keys"] | None,
    documents: Int[Tensor, "batch keys"] | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """Divide the diagonal of K K^T by its mean or by its norm over the tokens that a query sees.

    Over all tokens this would leak the future, so causal layers use the running mean or norm. A
    window bounds it too, so that nothing beyond the window is needed again.

    Args:
        scores: Scaled content scores.
        squares: The whole diagonal, scale included.
        config: The layer.
        valid: True for real tokens, False for padding.
        documents: The document of each token; the mean and the norm are those of a document.

    Source: Kayyam et al. 2026, appendix A.2, figure 5.
    """
    by_norm = config.variant.diagonal == "norm"
    # Squares of squares leave the range of float16, and sums of many the precision of bfloat16.
    squares = squares.to(torch.promote_types(squares.dtype, torch.float32))
    present = torch.ones_like(squares) if valid is None else valid[:, None].to(squares.dtype)
    terms = (squares.square() if by_norm else squares) * present
    members = _find_members(squares, documents, config)
    total = _sum_diagonal(terms, members, causal=config.causal)
    count = _sum_diagonal(present, members, causal=config.causal)
    # Where no real token was seen yet there is nothing to divide by, and the pair is blocked.
    total = torch.where(count > 0, total, 1.0).clamp(min=torch.finfo(squares.dtype).tiny)
    ratio = squares / (total.sqrt() if by_norm else total / count.clamp(min=1.0))
    queries, keys = scores.shape[-2:]
    own = torch.eye(keys, dtype=torch.bool, device=scores.device)[keys - queries :]
    return torch.where(own, ratio[..., None, :].to(scores.dtype), scores)


def _find_members(
    squares: Float[Tensor, "batch heads keys"],
    documents: Int[Tensor, "batch keys"] | None,
    config: AttentionConfig,
) -> Float[Tensor, "rows 1 keys keys"] | None:
    """Ones for the tokens of each token's document and window, ``None`` where these are all."""
    window, keys = config.variant.window, squares.shape[-1]
    members: Tensor | None = None
    if documents is not None:
        members = documents[:, None, :, None] == documents[:, None, None, :]
    if window is not None and window < keys:
        index = torch.arange(keys, device=squares.device)
        near = ((index[:, None] - index).abs() < window)[None, None]
        members = near if members is None else members & near
    return None if members is None else members.to(squares.dtype)


def _sum_diagonal(
    terms: Float[Tensor, "batch heads keys"],
    members: Float[Tensor, "rows 1 keys keys"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "batch heads sums"]:
    """The sum over each token's members, causal layers: so far."""
    if members is None:
        return terms.cumsum(dim=-1) if causal else terms.sum(dim=-1, keepdim=True)
    return (terms[..., None, :] * (members.tril() if causal else members)).sum(dim=-1)
