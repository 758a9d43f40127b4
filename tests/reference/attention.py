"""Attention of every variant in float64, one query, key and head at a time, as published.

Written from what the configuration means and shares no code with ``qkvary.nn``. ``+`` stands here
in its published construction: the scaled score is copied to m channels, a fixed 2D sinusoid is
added, and a linear map with a bias takes the channels back to one score. Gradients are autograd's.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.positions import alibi, count_positions, plus_table, rotate

Weights = Mapping[str, Tensor]
"""The layer's learned numbers under the names of its state dict."""

Sources = dict[str, list[Tensor]]
"""One token's sources: a vector for every head that the source has."""


@dataclass
class Row:
    """What one sequence of a batch knows about its tokens."""

    positions: Sequence[int]
    real: Sequence[bool]
    documents: Sequence[int]


@dataclass
class Token:
    """What one token brings to the pairs it is in: a vector per head of each role."""

    query: list[Tensor]
    key: list[Tensor]
    value: list[Tensor]
    position: int
    query_rope: list[Tensor] = field(default_factory=list[Tensor])
    key_rope: Tensor | None = None


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
        tokens = [
            read_token(config, weights, vector, read_sources(config, weights, vector), position)
            for vector, position in zip(sequence, row.positions, strict=True)
        ]
        outputs.append(
            torch.stack([attend_token(config, weights, tokens, row, i) for i in range(len(tokens))])
        )
    return torch.stack(outputs)


def read_sources(config: AttentionConfig, weights: Weights, vector: Tensor) -> Sources:
    """Project one token and cut its sources into heads."""
    size = config.head_dim or config.d_model // config.num_heads
    sharing = config.variant.sharing
    sources: Sources = {}
    for source in {sharing.query, sharing.key, sharing.value}:
        flat = vector if source == "x" else project(weights, f"{source}_proj", vector)
        sources[source] = list(flat.split(size))
    if config.variant.latent is not None:
        sources[sharing.key] = [torch.cat(sources[sharing.key])]
    if config.variant.decoupled is not None:
        for name in ("q_rope", "k_rope"):
            flat = project(weights, f"{name}_proj", vector)
            sources[name] = list(flat.split(config.variant.decoupled))
    return sources


def read_token(
    config: AttentionConfig,
    weights: Weights,
    vector: Tensor | None,
    sources: Sources,
    position: int,
) -> Token:
    """Read the roles from the sources; without its vector a token is only looked at."""
    sharing = config.variant.sharing
    query = [] if vector is None else make_query(config, weights, vector, sources[sharing.query])
    key, value = read_key_value(config, weights, sources[sharing.key], sources[sharing.value])
    if config.variant.head_norm != "none":
        query = normalise_heads(config, query, weights["query_norm.weight"]) if query else []
        key = normalise_heads(config, key, weights["key_norm.weight"])
    if config.variant.decoupled is not None:
        queries = [] if vector is None else sources["q_rope"]
        turned = [_rotate(config, head, position, whole=True) for head in queries]
        shared = _rotate(config, sources["k_rope"][0], position, whole=True)
        return Token(query, key, value, position, turned, shared)
    if config.variant.positions == "rotary":
        turned = [_rotate(config, head, position) for head in key]
        if _value_is_rotated(config):
            value = [_rotate(config, head, position) for head in value]
        query, key = [_rotate(config, head, position) for head in query], turned
    return Token(query, key, value, position)


def read_key_value(
    config: AttentionConfig, weights: Weights, key: list[Tensor], value: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The heads of key and value, before any rotation, from the sources that they read."""
    variant = config.variant
    if variant.kv_norm:
        flat = torch.cat(key)
        root = torch.sqrt((flat * flat).sum() / len(flat) + 1e-6)
        key = value = list((flat / root * weights["kv_norm.weight"]).split(len(key[0])))
    if variant.latent is not None:
        size = config.head_dim or config.d_model // config.num_heads
        expanded = [
            list((weights[f"latent.{role}.weight"] * key[0]).sum(dim=1).split(size))
            for role in ("key", "value")
        ]
        return expanded[0], expanded[1]
    return key, value


def normalise_heads(config: AttentionConfig, heads: list[Tensor], gain: Tensor) -> list[Tensor]:
    """Each head over the root of its mean square, or all heads over that of all, times a gain."""
    settings, size = config.scale, len(heads[0])
    gain = 1.0 + gain if settings.norm_adds_one else gain
    if config.variant.head_norm == "qk-norm":
        return [
            head / torch.sqrt((head * head).sum() / size + settings.norm_eps) * gain
            for head in heads
        ]
    flat = torch.cat(heads)
    root = torch.sqrt((flat * flat).sum() / len(flat) + settings.norm_eps)
    return list((flat / root * gain).split(size))


def make_query(
    config: AttentionConfig, weights: Weights, vector: Tensor, source: list[Tensor]
) -> list[Tensor]:
    """The query of every head from the source that it reads."""
    form, heads = config.variant.query_form, config.num_heads
    if form == "plain":
        return source
    if form == "map":
        group = heads // len(source)
        return [_row_times(source[h // group], weights["query_map"][h]) for h in range(heads)]
    own = vector.split(len(source[0]))
    changes = [gelu(head) if form == "residual-gelu" else head for head in source]
    return [plain + change for plain, change in zip(own, changes, strict=True)]


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
    seen = [j for j in range(len(tokens)) if is_visible(config, row, i, j)]
    mixed: list[Tensor] = []
    for head in range(config.num_heads):
        total = torch.zeros_like(tokens[i].value[0])
        if config.variant.core == "sima":
            probabilities = sima_weights(config, tokens, row, head, i, seen)
        elif config.variant.core.startswith("linear"):
            probabilities = linear_weights(config, weights, tokens, head, i, seen)
        else:
            scores = [score(config, weights, tokens, row, head, i, j) for j in seen]
            normalise = softmax if config.variant.core == "softmax" else exponentials
            probabilities = normalise(scores)
        for probability, j in zip(probabilities, seen, strict=True):
            values = tokens[j].value
            total = total + probability * values[head * len(values) // config.num_heads]
        if _value_is_rotated(config) and config.position.value_rope == "counter":
            total = _rotate(config, total, tokens[i].position, back=True)
        mixed.append(total)
    return project(weights, "o_proj", torch.cat(mixed))


def linear_weights(
    config: AttentionConfig,
    weights: Weights,
    tokens: Sequence[Token],
    head: int,
    i: int,
    seen: Sequence[int],
) -> list[Tensor]:
    """The weights of linear attention: products of features, decayed, divided by a sum."""
    variant = config.variant
    products = [
        (
            features(variant.core, tokens[i].query[head])
            * features(variant.core, key_head(config, tokens, head, j))
        ).sum()
        for j in seen
    ]
    own = head * len(tokens[i].key) // config.num_heads
    factor = torch.tensor(1.0, dtype=torch.float64)
    if variant.decay == "fixed":
        factor = 1.0 - torch.tensor(2.0, dtype=torch.float64) ** (-5 - own)
    if variant.decay == "learned":
        factor = 1.0 / (1.0 + torch.exp(-weights["decay.weight"][own]))
    decayed = [one * factor ** (i - j) for one, j in zip(products, seen, strict=True)]
    if variant.core == "linear-identity" or variant.normaliser == "unnormalised":
        return [one * score_scale(config, tokens[i]) for one in decayed]
    total = sum(products if variant.normaliser == "undecayed-sum" else decayed, torch.tensor(0.0))
    return [one / max(total, torch.tensor(1e-6)) for one in decayed]


def features(core: str, vector: Tensor) -> Tensor:
    """The features of a query or a key, channel by channel."""
    if core == "linear":
        return torch.stack([1.0 + z if z > 0 else torch.exp(z) for z in vector])
    if core == "linear-relu":
        return torch.stack([z if z > 0 else 0.0 * z for z in vector])
    if core == "linear-softmax":
        exponents = torch.exp(vector)
        return exponents / exponents.sum()
    return vector


def is_visible(config: AttentionConfig, row: Row, i: int, j: int) -> bool:
    """Whether token i may see token j."""
    if not row.real[j] or row.documents[i] != row.documents[j]:
        return False
    if config.causal and j > i:
        return False
    window, stride = config.variant.window, config.variant.stride
    if stride is None:
        return window is None or abs(i - j) < window
    return abs(i - j) % stride == 0 or (window is not None and abs(i - j) < window)


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
    result = scaled_product(config, tokens, head, i, j)
    if variant.core == "soft":
        result = gaussian_exponent(config, tokens, head, i, j)
    if variant.diagonal in ("mean", "norm") and i == j:
        result = result / diagonal_size(config, tokens, row, head, i)
    if variant.diagonal in ("mean-unscaled", "norm-unscaled") and i == j:
        # Paper 1's listing: the products are divided, and the scale comes after that.
        own = product(config, tokens, head, i, i)
        result = own / unscaled_size(config, tokens, row, head, i) * score_scale(config, tokens[i])
    if variant.soft_cap is not None:
        result = variant.soft_cap * torch.tanh(result / variant.soft_cap)
    query_position, key_position = tokens[i].position, tokens[j].position
    if variant.plus:
        result = published_plus(config, weights, head, result, query_position, key_position)
    if variant.key_bias:
        own, table = head if config.position.plus_per_head else 0, weights["key_bias.weight"]
        bias = table[own, min(key_position, table.shape[1] - 1)]
        result = result * weights["key_bias.gain"][own] + bias
    if variant.positions == "relative":
        reach = config.position.relative_distance
        distance = query_position - key_position
        lowest = 0 if config.causal else -reach
        index = max(lowest, min(reach, distance)) - lowest
        result = result + weights["relative.weight"][head, index]
    if variant.positions == "alibi":
        result = result + alibi(head, config.num_heads, query_position, key_position)
    return result if variant.temperature == 1.0 else result / variant.temperature


def scaled_product(
    config: AttentionConfig, tokens: Sequence[Token], head: int, i: int, j: int
) -> Tensor:
    """The scaled product of a query head with the key head of its group."""
    return product(config, tokens, head, i, j) * score_scale(config, tokens[i])


def product(config: AttentionConfig, tokens: Sequence[Token], head: int, i: int, j: int) -> Tensor:
    """The product of a query head with the key head of its group."""
    total = (tokens[i].query[head] * key_head(config, tokens, head, j)).sum()
    rope = tokens[j].key_rope
    return total if rope is None else total + (tokens[i].query_rope[head] * rope).sum()


def key_head(config: AttentionConfig, tokens: Sequence[Token], head: int, j: int) -> Tensor:
    """The key head of a query head's group."""
    keys = tokens[j].key
    return keys[head * len(keys) // config.num_heads]


def score_scale(config: AttentionConfig, token: Token) -> float:
    """The factor of products, temperature aside."""
    size = len(token.key[0]) + (config.variant.decoupled or 0)
    size = size if config.scale.by == "head" else config.d_model
    size = size if config.scale.channels is None else config.scale.channels
    return config.identity_correction / math.sqrt(size)


def gaussian_exponent(
    config: AttentionConfig, tokens: Sequence[Token], head: int, i: int, j: int
) -> Tensor:
    """SOFT: minus the squared distance over twice the root of the head's channels."""
    difference = tokens[i].query[head] - key_head(config, tokens, head, j)
    return -(difference * difference).sum() * (score_scale(config, tokens[i]) / 2)


def sima_weights(
    config: AttentionConfig,
    tokens: Sequence[Token],
    row: Row,
    head: int,
    i: int,
    seen: Sequence[int],
) -> list[Tensor]:
    """SimA: products of a query and keys whose channels are divided by sums over the tokens."""
    members = [
        j for j in range(len(tokens)) if row.real[j] and row.documents[j] == row.documents[i]
    ]
    found: list[Tensor] = []
    for j in seen:
        total = torch.zeros((), dtype=torch.float64)
        key = key_head(config, tokens, head, j)
        for channel in range(len(key)):
            query_norm = sum(abs(tokens[m].query[head][channel]) for m in members)
            key_norm = sum(abs(key_head(config, tokens, head, m)[channel]) for m in members)
            total = total + tokens[i].query[head][channel] / query_norm * key[channel] / key_norm
        found.append(total)
    return found


def exponentials(scores: Sequence[Tensor]) -> list[Tensor]:
    """Exponentials that nothing divides."""
    return [torch.exp(one) for one in scores]


def diagonal_size(
    config: AttentionConfig, tokens: Sequence[Token], row: Row, head: int, i: int
) -> Tensor:
    """The mean or the norm of the diagonal over what token i sees."""
    members = [j for j in range(len(tokens)) if is_visible(config, row, i, j)]
    own = torch.stack([scaled_product(config, tokens, head, j, j) for j in members])
    if config.variant.diagonal == "mean":
        return own.sum() / len(members)
    return (own * own).sum().sqrt()


def unscaled_size(
    config: AttentionConfig, tokens: Sequence[Token], row: Row, head: int, i: int
) -> Tensor:
    """The mean or the norm of the squared norms of the keys that token i sees."""
    total = torch.zeros((), dtype=torch.float64)
    members = [j for j in range(len(tokens)) if is_visible(config, row, i, j)]
    for j in members:
        square = product(config, tokens, head, j, j)
        total = total + (square if config.variant.diagonal == "mean-unscaled" else square**2)
    return total / len(members) if config.variant.diagonal == "mean-unscaled" else total.sqrt()


def published_plus(
    config: AttentionConfig, weights: Weights, head: int, content: Tensor, i: int, j: int
) -> Tensor:
    """Copy the score to m channels, add P[i, j], and map the channels to one score."""
    map_index = head if config.position.plus_per_head else 0
    weight, bias = weights["plus.weight"][map_index], weights["plus.bias"][map_index]
    return (weight * (content + _plus_tensor(i, j, len(weight)))).sum() + bias


@functools.cache
def _plus_tensor(i: int, j: int, features: int) -> Tensor:
    return torch.tensor(plus_table(i, j, features), dtype=torch.float64)


def softmax(scores: Sequence[Tensor]) -> Sequence[Tensor]:
    """Exponentials over their sum."""
    if not scores:
        return []
    row = torch.stack(list(scores))
    exponentials = torch.exp(row - row.max().detach())
    return (exponentials / exponentials.sum()).unbind()


def _value_is_rotated(config: AttentionConfig) -> bool:
    sharing = config.variant.sharing
    joined = sharing.value == sharing.key or config.position.rotates_value
    rotary = config.variant.positions == "rotary"
    return rotary and joined and config.position.value_rope != "none"


def _rotate(
    config: AttentionConfig,
    vector: Tensor,
    position: int,
    *,
    back: bool = False,
    whole: bool = False,
) -> Tensor:
    dim = max(2, 2 * int(len(vector) * config.position.rotary_fraction / 2))
    dim = len(vector) if whole else dim
    return rotate(vector, position, dim=dim, base=config.position.rotary_base, back=back)


def _row_times(vector: Tensor, matrix: Tensor) -> Tensor:
    return (vector[:, None] * matrix).sum(dim=0)
