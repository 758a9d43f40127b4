"""Linear attention in its three forms: a map of all pairs, chunks of tokens, and a recurrence.

Each form takes the features ``phi(q)`` and ``phi(k)``, and returns sums of weighted values and of
weights. The caller applies feature maps and the division.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkvary.nn.terms import content_scores

Queries = Float[Tensor, "batch heads queries features"]
Keys = Float[Tensor, "batch kv_heads tokens features"]
Values = Float[Tensor, "batch kv_heads tokens head_dim"]

GroupedQueries = Float[Tensor, "batch kv_heads chunks group chunk_tokens _"]
GroupedTotals = Float[Tensor, "batch kv_heads chunks group chunk_tokens"]
ChunkedKeys = Float[Tensor, "batch kv_heads chunks chunk_tokens _"]


class State(NamedTuple):
    """The sums over all tokens so far. They replace a cache with one entry per token."""

    values: Float[Tensor, "batch kv_heads features head_dim"]
    """``S``, the sum of ``phi(k) v^T`` over all tokens, decayed if the layer decays."""
    keys: Float[Tensor, "batch kv_heads features"] | None
    """The sum of ``phi(k)`` over all tokens; None for a layer without a normaliser."""


class Mixture(NamedTuple):
    """The sums of weighted values and of weights for each query, before the division."""

    values: Float[Tensor, "batch heads queries head_dim"]
    weights: Float[Tensor, "batch heads queries"] | None
    """The sum of weights for each query; None for a layer without a normaliser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """The options of a layer's sums: the decay, and whether weights are normalised."""

    log_decay: Float[Tensor, " kv_heads"] | None = None
    """The logarithm of each KV head's decay per token; None if nothing decays."""
    has_weights: bool = True
    decays_weights: bool = True
    """Whether the normaliser decays like the values."""


def weigh_pairs(
    query: Queries, key: Keys, sums: Sums, seen: Bool[Tensor, "rows 1 _ tokens"] | None
) -> tuple[
    Float[Tensor, "batch heads queries tokens"], Float[Tensor, "batch heads queries"] | None
]:
    """Return the weight of every pair, ``phi(q) phi(k)^T`` with decay, and the sums of weights."""
    products = content_scores(query, key)
    if seen is not None:
        products = products * seen
    weights = products
    if sums.log_decay is not None:
        fade = _fade(sums.log_decay, query.shape[2], key.shape[2])
        weights = products * fade.repeat_interleave(query.shape[1] // key.shape[1], dim=0)
    total = (weights if sums.decays_weights else products).sum(dim=-1)
    return weights, total if sums.has_weights else None


def attend_to_all(query: Queries, key: Keys, value: Values, sums: Sums) -> Mixture:
    """Return the sums for queries that see all tokens, without a map of pairs."""
    total = None
    if sums.has_weights:
        total = content_scores(query, key.sum(dim=2, keepdim=True)).squeeze(-1)
    return Mixture(content_scores(query, (key.mT @ value).mT), total)


def step(
    query: Queries, key: Keys, value: Values, sums: Sums, before: State | None
) -> tuple[Mixture, State]:
    """Return the sums for one new token by the recurrence, and the state after that token.

    ``S_t = decay S_{t-1} + phi(k_t) v_t^T`` and ``y_t = phi(q_t) S_t``.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", section 3.4; the decay is that of
    Kayyam et al. 2026, appendix A.1.
    """
    values, keys = key.mT @ value, key.sum(dim=2) if sums.has_weights else None
    if before is not None:
        factor = None if sums.log_decay is None else sums.log_decay.exp()[:, None]
        old, total = before
        values = values + (old if factor is None else old * factor[..., None])
        if keys is not None and total is not None:
            keys = keys + (total if factor is None or not sums.decays_weights else total * factor)
    mixed = content_scores(query, values.mT)
    weights = None if keys is None else content_scores(query, keys[..., None, :]).squeeze(-1)
    return Mixture(mixed, weights), State(values, keys)


def attend_in_chunks(
    query: Queries,
    key: Keys,
    value: Values,
    sums: Sums,
    *,
    chunk: int,
    before: State | None = None,
    documents: Int[Tensor, "batch tokens"] | None = None,
    document_before: Int[Tensor, " batch"] | None = None,
    keep: bool = False,
) -> tuple[Mixture, State | None]:
    """Return the sums for new tokens, and the state after them if ``keep`` is set.

    The keys of padding must be zero, and the tokens of a document contiguous. ``document_before``
    is the document of the last token before the new tokens.

    Source: Hua et al. 2022, "Transformer Quality in Linear Time", section 3.3.
    """
    tokens = key.shape[2]
    whole = tokens - tokens % chunk
    if whole in (0, tokens):
        size = min(chunk, tokens)
        own = None if documents is None else _read_documents(documents, document_before, size)
        return _attend(query, key, value, sums, size=size, before=before, documents=own, keep=keep)
    mixtures: list[Mixture] = []
    for part in (slice(0, whole), slice(whole, tokens)):
        own = None if documents is None else documents[:, part]
        mixture, before = attend_in_chunks(
            query[:, :, part],
            key[:, :, part],
            value[:, :, part],
            sums,
            chunk=chunk,
            before=before,
            documents=own,
            document_before=document_before,
            keep=keep or part.stop == whole,
        )
        mixtures.append(mixture)
        document_before = None if own is None else own[:, -1]
    totals = [one.weights for one in mixtures if one.weights is not None]
    values = torch.cat([one.values for one in mixtures], dim=2)
    return Mixture(values, torch.cat(totals, dim=2) if totals else None), before


class _Documents(NamedTuple):
    """Factors that separate documents: 1 within one document, 0 between two documents.

    A state belongs to the document of the last token that it includes.
    """

    same: Float[Tensor, "batch chunks chunk_tokens chunk_tokens"]
    """1 for each pair of tokens within a chunk that belong to the same document."""
    follows: Float[Tensor, "batch chunks chunk_tokens"]
    """1 for each token that belongs to the same document as the state before its chunk."""
    stays: Float[Tensor, "batch chunks chunk_tokens"]
    """1 for each token that belongs to the same document as the state after its chunk."""
    carries: Float[Tensor, "batch chunks"]
    """1 for each chunk if the states before and after it belong to the same document."""


def _read_documents(
    documents: Int[Tensor, "batch tokens"], before: Int[Tensor, " batch"] | None, size: int
) -> _Documents:
    ids = documents.unflatten(1, (-1, size))
    first = ids[:, :1, 0] if before is None else before[:, None]
    last = ids[:, :, -1]
    previous = torch.cat((first, last[:, :-1]), dim=1)
    return _Documents(
        same=(ids[..., :, None] == ids[..., None, :]).float(),
        follows=(ids == previous[..., None]).float(),
        stays=(ids == last[..., None]).float(),
        carries=(previous == last).float(),
    )


def _attend(
    query: Queries,
    key: Keys,
    value: Values,
    sums: Sums,
    *,
    size: int,
    before: State | None,
    documents: _Documents | None,
    keep: bool,
) -> tuple[Mixture, State | None]:
    """Return the sums for tokens that fill chunks of one size, and the state after them."""
    # Queries are [batch, kv_heads, chunks, group, tokens, channels]: a group shares one KV head.
    key, value = (one.unflatten(2, (-1, size)).contiguous() for one in (key, value))
    query = query.unflatten(2, (-1, size)).unflatten(1, (key.shape[1], -1)).transpose(2, 3)
    query = query.contiguous()
    mixed, total = _attend_inside(query, key, value, sums, documents)
    states, after, has_several = None, None, key.shape[2] > 1
    if keep or has_several:
        states, after = _scan(key, value, sums, before, documents)
    elif before is not None:
        totals = None if before.keys is None else before.keys.unsqueeze(2)
        states = State(before.values.unsqueeze(2), totals)
    if states is not None and (before is not None or has_several):
        mixed, total = _add_states(mixed, total, query, states, sums, documents)
    mixed = mixed.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    if total is not None:
        total = total.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    return Mixture(mixed, total), after


def _attend_inside(
    query: GroupedQueries,
    key: ChunkedKeys,
    value: ChunkedKeys,
    sums: Sums,
    documents: _Documents | None,
) -> tuple[GroupedQueries, GroupedTotals | None]:
    """Return the sums of weighted values and of weights over the pairs within each chunk."""
    size = key.shape[3]
    inside = torch.ones(size, size, dtype=query.dtype, device=query.device).tril()
    products = _by_group(query, key.mT)
    products = products * (
        inside if documents is None else (inside * documents.same)[:, None, :, None]
    )
    weights = products
    if sums.log_decay is not None:
        weights = products * _fade(sums.log_decay, size, size)[:, None, None]
    total = (weights if sums.decays_weights else products).sum(dim=-1)
    return _by_group(weights, value), total if sums.has_weights else None


def _scan(
    key: ChunkedKeys,
    value: ChunkedKeys,
    sums: Sums,
    before: State | None,
    documents: _Documents | None,
) -> tuple[State, State]:
    """Return the states before each chunk, stacked, and the state after the last chunk."""
    plain = key if documents is None else key * documents.stays[:, None, :, :, None]
    carried = None if documents is None else documents.carries[:, None]
    faded, factor = plain, carried
    if sums.log_decay is not None:
        size = key.shape[3]
        left = torch.arange(size - 1, -1, -1, device=key.device)
        faded = plain * torch.exp(sums.log_decay[:, None] * left)[:, None, :, None]
        whole = torch.exp(sums.log_decay * size)[:, None]
        factor = whole.expand(1, -1, key.shape[2]) if carried is None else whole * carried
    values = _accumulate(faded.mT @ value, None if before is None else before.values, factor)
    if not sums.has_weights:
        return State(values[0], None), State(values[1], None)
    added = (faded if sums.decays_weights else plain).sum(dim=3)
    kept = factor if sums.decays_weights else carried
    keys = _accumulate(added, None if before is None else before.keys, kept)
    return State(values[0], keys[0]), State(values[1], keys[1])


def _accumulate(
    added: Float[Tensor, "batch kv_heads chunks *sizes"],
    before: Float[Tensor, "batch kv_heads *sizes"] | None,
    factor: Float[Tensor, "_ _ chunks"] | None,
) -> tuple[Float[Tensor, "batch kv_heads chunks *sizes"], Float[Tensor, "batch kv_heads *sizes"]]:
    """Return the running sums before each chunk, stacked, and the sum after the last chunk."""
    parts = added.unbind(2)
    now = torch.zeros_like(parts[0]) if before is None else before
    found: list[Tensor] = []
    for index, part in enumerate(parts):
        found.append(now)
        if factor is not None:
            now = now * factor[:, :, index].view(*factor.shape[:2], *(1 for _ in part.shape[2:]))
        now = now + part
    return torch.stack(found, dim=2), now


def _add_states(
    mixed: GroupedQueries,
    total: GroupedTotals | None,
    query: GroupedQueries,
    states: State,
    sums: Sums,
    documents: _Documents | None,
) -> tuple[GroupedQueries, GroupedTotals | None]:
    """Add what the state at the start of each chunk contributes to the sums of the chunk."""
    plain = query if documents is None else query * documents.follows[:, None, :, None, :, None]
    faded = plain
    if sums.log_decay is not None:
        passed = torch.arange(1, query.shape[4] + 1, device=query.device)
        faded = plain * torch.exp(sums.log_decay[:, None] * passed)[:, None, None, :, None]
    mixed = mixed + _by_group(faded, states.values)
    if total is None or states.keys is None:
        return mixed, total
    asking = faded if sums.decays_weights else plain
    return mixed, total + _by_group(asking, states.keys[..., None]).squeeze(-1)


def _by_group(
    query: GroupedQueries, matrix: Float[Tensor, "batch kv_heads chunks _ outer"]
) -> Float[Tensor, "batch kv_heads chunks group chunk_tokens outer"]:
    """Multiply the queries of each group by the matrix of their KV head."""
    return (query.flatten(3, 4) @ matrix).unflatten(3, query.shape[3:5])


def _fade(
    log_decay: Float[Tensor, " kv_heads"], queries: int, keys: int
) -> Float[Tensor, "kv_heads queries keys"]:
    """Return the decay of every pair; 1 for masked pairs, whose key comes after the query."""
    index = torch.arange(keys, device=log_decay.device)
    distance = (index[keys - queries :, None] - index).clamp(min=0)
    return torch.exp(log_decay[:, None, None] * distance)
