"""Attention of every variant in float64, one query, key and head at a time, as published.

Written from what the configuration means and shares no code with ``qkvary.nn``. ``+`` stands here
in its published construction: the scaled score is copied to m channels, a fixed 2D sinusoid is
added, and a linear map with a bias takes the channels back to one score. Gradients are autograd's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.positions import alibi, count_positions, plus_table, rotate

Weights = Mapping[str, Tensor]
"""The layer's learned numbers under the names of its state dict."""


@dataclass
class Row:
    """What one sequence of a batch knows about its tokens."""

    positions: Sequence[int]
    real: Sequence[bool]
    documents: Sequence[int]


@dataclass
class Token:
    """One token's heads, per source: a list with one vector per head of the source."""

    sources: dict[str, list[Tensor]]
    query: list[Tensor] = field(default_factory=list)


def rows_of(
    length: int,
    batch: int,
    *,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
) -> list[Row]:
    """The rows of a batch from the arguments of a network."""
    rows: list[Row] = []
    for index in range(batch):
        real = None if mask is None else mask[index].tolist()
        own = None if documents is None else documents[index].tolist()
        given = None if positions is None else positions[index % len(positions)].tolist()
        rows.append(
            Row(
                positions=count_positions(length, real, own) if given is None else given,
                real=real or [True] * length,
                documents=own or [0] * length,
            )
        )
    return rows


def attend(
    config: AttentionConfig,
    weights: Weights,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    positions: Tensor | None = None,
    documents: Tensor | None = None,
) -> Tensor:
    """The layer's output for ``x`` of shape [batch, tokens, d_model].

    Tokens that see nobody, which only padding can be, get the output of a zero mixture.
    """
    rows = rows_of(x.shape[1], x.shape[0], mask=mask, positions=positions, documents=documents)
    outputs: list[Tensor] = []
    for sequence, row in zip(x, rows, strict=True):
        tokens = [read_token(config, weights, vector) for vector in sequence]
        outputs.append(
            torch.stack([attend_token(config, weights, tokens, row, i) for i in range(len(tokens))])
        )
    return torch.stack(outputs)


def read_token(config: AttentionConfig, weights: Weights, vector: Tensor) -> Token:
    """Project one token and cut its sources into heads."""
    size = config.head_dim or config.d_model // config.num_heads
    sharing = config.variant.sharing
    sources: dict[str, list[Tensor]] = {}
    for source in {sharing.query, sharing.key, sharing.value}:
        flat = vector if source == "x" else project(weights, f"{source}_proj", vector)
        sources[source] = list(flat.split(size))
    query = sources[sharing.query]
    form = config.variant.query_form
    if form == "map":
        group = config.num_heads // len(query)
        query = [
            _rows_times(query[head // group], weights["query_map"][head])
            for head in range(config.num_heads)
        ]
    elif form != "plain":
        own = list(vector.split(size))
        query = [
            plain + (gelu(change) if form == "residual-gelu" else change)
            for plain, change in zip(own, query, strict=True)
        ]
    return Token(sources, query)


def project(weights: Weights, name: str, vector: Tensor) -> Tensor:
    """One token through a full or a low-rank projection."""
    inner = vector
    if f"{name}.down" in weights:
        inner = (weights[f"{name}.down"] * vector).sum(dim=1)
    result = (weights[f"{name}.weight"] * inner).sum(dim=1)
    return result + weights[f"{name}.bias"] if f"{name}.bias" in weights else result


def gelu(z: Tensor) -> Tensor:
    """The exact GELU, z times the normal distribution function."""
    return z * 0.5 * (1.0 + torch.erf(z / math.sqrt(2.0)))


def attend_token(
    config: AttentionConfig,
    weights: Weights,
    tokens: Sequence[Token],
    row: Row,
    i: int,
) -> Tensor:
    """The output of token i, given all tokens that exist so far."""
    value_name = config.variant.sharing.value
    seen = [j for j in range(len(tokens)) if is_visible(config, row, i, j)]
    mixed: list[Tensor] = []
    for head in range(config.num_heads):
        total = torch.zeros_like(tokens[i].query[head])
        probabilities = softmax([score(config, weights, tokens, row, head, i, j) for j in seen])
        for probability, j in zip(probabilities, seen, strict=True):
            values = tokens[j].sources[value_name]
            value = values[head * len(values) // config.num_heads]
            if _value_is_rotated(config):
                value = _rotate(config, value, row.positions[j])
            total = total + probability * value
        if _value_is_rotated(config) and config.position.value_rope == "counter":
            total = _rotate(config, total, row.positions[i], back=True)
        mixed.append(total)
    return project(weights, "o_proj", torch.cat(mixed))


def is_visible(config: AttentionConfig, row: Row, i: int, j: int) -> bool:
    """Whether token i may see token j."""
    if not row.real[j] or row.documents[i] != row.documents[j]:
        return False
    if config.causal and j > i:
        return False
    window = config.variant.window
    return window is None or abs(i - j) < window


def score(
    config: AttentionConfig,
    weights: Weights,
    tokens: Sequence[Token],
    row: Row,
    head: int,
    i: int,
    j: int,
) -> Tensor:
    """What the softmax reads for one pair."""
    variant = config.variant
    content = scaled_product(config, tokens, row, head, i, j)
    if variant.diagonal != "none" and i == j:
        content = content / diagonal_size(config, tokens, row, head, i)
    query_position, key_position = row.positions[i], row.positions[j]
    if variant.plus:
        content = published_plus(config, weights, head, content, query_position, key_position)
    if variant.positions == "relative":
        reach = config.position.relative_distance
        distance = query_position - key_position
        lowest = 0 if config.causal else -reach
        index = max(lowest, min(reach, distance)) - lowest
        content = content + weights["relative.weight"][head, index]
    if variant.positions == "alibi":
        content = content + alibi(head, config.num_heads, query_position, key_position)
    return content / variant.temperature


def scaled_product(
    config: AttentionConfig, tokens: Sequence[Token], row: Row, head: int, i: int, j: int
) -> Tensor:
    """The scaled product of a query head with the key head of its group."""
    keys = tokens[j].sources[config.variant.sharing.key]
    query, key = tokens[i].query[head], keys[head * len(keys) // config.num_heads]
    if config.variant.positions == "rotary":
        query = _rotate(config, query, row.positions[i])
        key = _rotate(config, key, row.positions[j])
    size = len(query) if config.scale.by == "head" else config.d_model
    return (query * key).sum() * config.identity_correction / math.sqrt(size)


def diagonal_size(
    config: AttentionConfig, tokens: Sequence[Token], row: Row, head: int, i: int
) -> Tensor:
    """The mean or the norm of the diagonal over the document's real tokens, causal: so far."""
    last = i + 1 if config.causal else len(tokens)
    members = [j for j in range(last) if row.real[j] and row.documents[j] == row.documents[i]]
    own = torch.stack([scaled_product(config, tokens, row, head, j, j) for j in members])
    if config.variant.diagonal == "mean":
        return own.sum() / len(members)
    return (own * own).sum().sqrt()


def published_plus(
    config: AttentionConfig, weights: Weights, head: int, content: Tensor, i: int, j: int
) -> Tensor:
    """Copy the score to m channels, add P[i, j], and map the channels to one score."""
    map_index = head if config.position.plus_per_head else 0
    weight, bias = weights["plus.weight"][map_index], weights["plus.bias"][map_index]
    table = torch.tensor(plus_table(i, j, len(weight)), dtype=content.dtype)
    return (weight * (content.expand(len(weight)) + table)).sum() + bias


def softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    """Exponentials over their sum."""
    if not scores:
        return []
    highest = max(score.item() for score in scores)
    exponentials = [torch.exp(score - highest) for score in scores]
    total = torch.stack(exponentials).sum()
    return [exponential / total for exponential in exponentials]


def _value_is_rotated(config: AttentionConfig) -> bool:
    sharing = config.variant.sharing
    joined = config.variant.positions == "rotary" and sharing.value == sharing.key
    return joined and config.position.value_rope != "none"


def _rotate(
    config: AttentionConfig, vector: Tensor, position: int, *, back: bool = False
) -> Tensor:
    dim = max(2, 2 * int(len(vector) * config.position.rotary_fraction / 2))
    return rotate(vector, position, dim=dim, base=config.position.rotary_base, back=back)


def _rows_times(vector: Tensor, matrix: Tensor) -> Tensor:
    return (vector[:, None] * matrix).sum(dim=0)
