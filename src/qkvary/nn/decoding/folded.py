"""Decoding attention in plain torch: several forms, of which machines prefer different ones.

All take fewer KV heads than heads without copying keys, by folding the heads of a group into the
queries. Where the value is the key, they get one tensor twice, and what was read for the scores may
still be in a cache when it is mixed.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from qkvary.nn.decoding.problem import Decoding

Mixed = Float[Tensor, "batch heads queries value_dim"]

CHUNK = 2048
"""Keys of a chunk: small enough to stay in a cache between its two products."""


def attend_sdpa(problem: Decoding) -> Mixed:
    """Attend with the fused kernel and its own way to share KV heads."""
    problem = problem.plain()
    visible = problem.visible()
    mixed = _fused(problem.query, problem, visible, is_grouped=True)
    return _blank(mixed, visible)


def attend_folded(problem: Decoding) -> Mixed:
    """Attend with the fused kernel over folded queries."""
    problem = problem.plain()
    visible = problem.folded_visible()
    mixed = _fused(problem.folded_query(), problem, visible, is_grouped=False)
    return problem.unfold(_blank(mixed, visible))


def attend_matmul(problem: Decoding) -> Mixed:
    """Attend with two products and a whole map of scores between them."""
    problem = problem.plain()
    visible = problem.folded_visible()
    scores = _scores(problem.folded_query() * problem.scale, problem.key, visible)
    mixed = torch.softmax(scores, dim=-1).to(problem.value.dtype) @ problem.value
    return problem.unfold(_blank(mixed, visible))


def attend_chunks(problem: Decoding) -> Mixed:
    """Attend with two products for each KV head and chunk of keys, merged by their weights' sums.

    One matrix at a time takes another way through some libraries than a batch of them.
    """
    problem = problem.plain()
    visible = problem.folded_visible()
    query = problem.folded_query() * problem.scale
    batch, kv_heads, rows, _ = query.shape
    mixed = query.new_empty(batch, kv_heads, rows, problem.value.shape[-1])
    for row in range(batch):
        seen = None if visible is None else visible[row % visible.shape[0], 0]
        for head in range(kv_heads):
            key, value = problem.key[row, head], problem.value[row, head]
            mixed[row, head] = _attend_by_chunks(query[row, head], key, value, seen)
    return problem.unfold(_blank(mixed, visible))


def _attend_by_chunks(
    query: Float[Tensor, "rows key_dim"],
    key: Float[Tensor, "keys key_dim"],
    value: Float[Tensor, "keys value_dim"],
    visible: Bool[Tensor, "rows keys"] | None,
) -> Float[Tensor, "rows value_dim"]:
    wide = torch.promote_types(query.dtype, torch.float32)
    parts: list[Tensor] = []
    totals: list[Tensor] = []
    highest: list[Tensor] = []
    for first in range(0, key.shape[0], CHUNK):
        chunk = slice(first, first + CHUNK)
        scores = _scores(query, key[chunk], None if visible is None else visible[:, chunk]).to(wide)
        # A chunk of which nothing is seen has nothing to be relative to.
        most = scores.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(wide).min)
        weights = scores.sub_(most).exp_()
        parts.append((weights.to(value.dtype) @ value[chunk]).to(wide))
        totals.append(weights.sum(dim=-1, keepdim=True))
        highest.append(most)
    shares = torch.stack(highest)
    shares = (shares - shares.amax(dim=0)).exp_()
    mixed = (torch.stack(parts) * shares).sum(dim=0)
    return (mixed / (torch.stack(totals) * shares).sum(dim=0)).to(query.dtype)


def _fused(query: Tensor, problem: Decoding, visible: Tensor | None, *, is_grouped: bool) -> Tensor:
    key, value = problem.key, problem.value
    wider = key.shape[-1] - value.shape[-1]
    # Fused kernels want one width; a pad of nothing would be a copy.
    if wider < 0:
        query, key = F.pad(query, (0, -wider)), F.pad(key, (0, -wider))
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        F.pad(value, (0, wider)) if wider > 0 else value,
        attn_mask=visible,
        scale=problem.scale,
        enable_gqa=is_grouped and query.shape[1] != key.shape[1],
    )
    return mixed[..., : value.shape[-1]]


def _scores(query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
    scores = query @ key.mT
    if scores.dtype == torch.float16:
        # Its range ends at 65,504, and a softmax of infinities is not a number.
        largest = torch.finfo(scores.dtype).max
        scores = scores.clamp_(-largest, largest)
    return scores if visible is None else scores.masked_fill_(~visible, -torch.inf)


def _blank(mixed: Tensor, visible: Tensor | None) -> Tensor:
    """Replace the output of queries that see nothing by zeros."""
    if visible is None:
        return mixed
    return torch.where(visible.any(dim=-1, keepdim=True), mixed, 0.0)


FORMS: Mapping[str, Callable[[Decoding], Tensor]] = {
    "sdpa": attend_sdpa,
    "folded": attend_folded,
    "matmul": attend_matmul,
    "chunks": attend_chunks,
}
"""By name."""
