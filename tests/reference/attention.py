"""Attention of every variant in float64, one sequence at a time, as published.

Written from what the configuration means and shares no code with ``qkvary.nn``. ``+`` stands here
in its published construction: the scaled score is copied to m channels, a fixed 2D sinusoid is
added, and a linear map with a bias takes the channels back to one score. Gradients are autograd's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from tests.reference.positions import count_positions, plus_table, rotate

Weights = Mapping[str, Tensor]
"""The layer's learned numbers under the names of its state dict."""

Sources = dict[str, Tensor]
"""The sources of some tokens: heads of the source, tokens, channels."""


@dataclass
class Row:
    """What one sequence of a batch knows about its tokens."""

    positions: Sequence[int]
    real: Sequence[bool]
    documents: Sequence[int]
    places: Sequence[int]
    """Where in the sequence they stand."""

    def take(self, places: Sequence[int]) -> "Row":
        """Some of the tokens."""
        parts = (self.positions, self.real, self.documents, self.places)
        positions, real, documents, own = ([part[i] for i in places] for part in parts)
        return Row(positions, real, documents, own)


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
                places=range(length),
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
    outputs = [
        mix(config, weights, sequence, read_sources(config, weights, sequence), row)
        for sequence, row in zip(x, rows, strict=True)
    ]
    return torch.stack(outputs)


def read_sources(config: AttentionConfig, weights: Weights, x: Tensor) -> Sources:
    """Project tokens and cut their sources into heads."""
    variant, sharing = config.variant, config.variant.sharing
    sources: Sources = {}
    for source in {sharing.query, sharing.key, sharing.value}:
        flat = x if source == "x" else project(weights, f"{source}_proj", x)
        is_latent = variant.latent is not None and source == sharing.key
        size = flat.shape[-1] if is_latent else head_size(config)
        sources[source] = torch.stack(flat.split(size, dim=-1))
    if variant.decoupled is not None:
        for name in ("q_rope", "k_rope"):
            flat = project(weights, f"{name}_proj", x)
            sources[name] = torch.stack(flat.split(variant.decoupled, dim=-1))
    return sources


def mix(
    config: AttentionConfig,
    weights: Weights,
    x: Tensor,
    sources: Sources,
    row: Row,
    asked: Sources | None = None,
) -> Tensor:
    """The outputs of some tokens that see one another; ``asked`` has the sources of queries."""
    variant, sharing = config.variant, config.variant.sharing
    query = make_query(config, weights, x, (asked or sources)[sharing.query])
    key, value = read_key_value(config, weights, sources[sharing.key], sources[sharing.value])
    if variant.head_norm != "none":
        query = normalise_heads(config, query, weights["query_norm.weight"])
        key = normalise_heads(config, key, weights["key_norm.weight"])
    if variant.decoupled is not None:
        parts = (sources["q_rope"], sources["k_rope"].expand(len(key), -1, -1))
        turned = [_rotate(config, part, row, whole=True) for part in parts]
        query, key = torch.cat((query, turned[0]), dim=-1), torch.cat((key, turned[1]), dim=-1)
    elif variant.positions == "rotary":
        query, key = _rotate(config, query, row), _rotate(config, key, row)
        value = _rotate(config, value, row) if _value_is_rotated(config) else value
    # The heads of a group read one key and one value.
    key, value = (one.repeat_interleave(len(query) // len(one), dim=0) for one in (key, value))
    mixed = weigh(config, weights, query, key, row) @ value
    if _value_is_rotated(config) and config.position.value_rope == "counter":
        mixed = _rotate(config, mixed, row, back=True)
    return project(weights, "o_proj", torch.cat(mixed.unbind(), dim=-1))


def read_key_value(
    config: AttentionConfig, weights: Weights, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The heads of key and value, before any rotation, from the sources that they read."""
    if config.variant.kv_norm:
        root = (key.square().mean(dim=(0, 2), keepdim=True) + 1e-6).sqrt()
        key = value = key / root * weights["kv_norm.weight"].view(len(key), 1, -1)
    if config.variant.latent is not None:
        flat = [key[0] @ weights[f"latent.{role}.weight"].T for role in ("key", "value")]
        key, value = (torch.stack(one.split(head_size(config), dim=-1)) for one in flat)
    return key, value


def normalise_heads(config: AttentionConfig, heads: Tensor, gain: Tensor) -> Tensor:
    """Each head over the root of its mean square, or all heads over that of all, times a gain."""
    is_wide = config.variant.head_norm != "qk-norm"
    gain = 1.0 + gain if config.scale.norm_adds_one else gain
    root = heads.square().mean(dim=(0, 2) if is_wide else 2, keepdim=True) + config.scale.norm_eps
    return heads / root.sqrt() * (gain.view(len(heads), 1, -1) if is_wide else gain)


def make_query(config: AttentionConfig, weights: Weights, x: Tensor, source: Tensor) -> Tensor:
    """The query of every head from the source that it reads."""
    form = config.variant.query_form
    if form == "plain":
        return source
    if form == "map":
        group = config.num_heads // len(source)
        return source.repeat_interleave(group, dim=0) @ weights["query_map"]
    own = torch.stack(x.split(source.shape[-1], dim=-1))
    return own + (gelu(source) if form == "residual-gelu" else source)


def head_size(config: AttentionConfig) -> int:
    return config.head_dim or config.d_model // config.num_heads


def project(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Tokens through a full or a low-rank projection."""
    inner = x @ weights[f"{name}.down"].T if f"{name}.down" in weights else x
    return inner @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.tensor(0.0))


def gelu(z: Tensor) -> Tensor:
    """The exact GELU, z times the normal distribution function."""
    return z * 0.5 * (1.0 + torch.erf(z / math.sqrt(2.0)))


def weigh(
    config: AttentionConfig, weights: Weights, query: Tensor, key: Tensor, row: Row
) -> Tensor:
    """The weights of the values: heads, tokens, tokens; zero where one is not seen."""
    variant, tokens = config.variant, range(len(row.places))
    seen = torch.tensor([[is_visible(config, row, i, j) for j in tokens] for i in tokens])
    scale = score_scale(config, query)
    if variant.core == "sima":
        return sima_weights(query, key, row) * seen
    if variant.core.startswith("linear"):
        own = torch.arange(config.num_heads) * config.num_kv_heads // config.num_heads
        factor = torch.ones(config.num_heads, dtype=torch.float64)
        if variant.decay == "fixed":
            factor = 1.0 - 2.0 ** (-5.0 - own.double())
        if variant.decay == "learned":
            factor = 1.0 / (1.0 + torch.exp(-weights["decay.weight"][own]))
        products = features(variant.core, query) @ features(variant.core, key).mT
        divides = variant.core != "linear-identity" and variant.normaliser != "unnormalised"
        decays_sum = variant.normaliser != "undecayed-sum"
        found = linear_weights(products, seen, factor, divides=divides, decays_sum=decays_sum)
        return found if divides else found * scale
    scores = score(config, weights, query, key, row, seen)
    if variant.core == "soft":
        return torch.exp(scores) * seen
    # Whoever sees nobody would have a softmax of nothing.
    hidden = ~seen & seen.any(dim=1, keepdim=True)
    return scores.masked_fill(hidden, -math.inf).softmax(dim=-1) * seen


def linear_weights(
    products: Tensor,
    seen: Tensor,
    factor: Tensor,
    *,
    divides: bool,
    decays_sum: bool,
    least: float = 1e-6,
) -> Tensor:
    """The weights of linear attention: products of features, decayed, divided by a sum."""
    places = torch.arange(products.shape[-1])
    decayed = products * factor[:, None, None] ** (places[:, None] - places) * seen
    total = (decayed if decays_sum else products * seen).sum(dim=-1, keepdim=True)
    return decayed / total.clamp(min=least) if divides else decayed


def features(core: str, z: Tensor) -> Tensor:
    """The features of queries or keys."""
    forms = {
        "linear": lambda: torch.where(z > 0, 1.0 + z, torch.exp(z)),
        "linear-relu": lambda: torch.where(z > 0, z, 0.0),
        "linear-softmax": lambda: torch.exp(z) / torch.exp(z).sum(dim=-1, keepdim=True),
        "linear-identity": lambda: z,
    }
    return forms[core]()


def sima_weights(query: Tensor, key: Tensor, row: Row) -> Tensor:
    """SimA: products of queries and keys whose channels are divided by sums over the tokens."""
    document, real = torch.tensor(row.documents), torch.tensor(row.real)
    members = ((document[:, None] == document) & real).double()
    sums = (members @ query.abs()) * (members @ key.abs())
    return (query / torch.where(sums > 0, sums, 1.0)) @ key.mT


def is_visible(config: AttentionConfig, row: Row, i: int, j: int) -> bool:
    """Whether token i may see token j."""
    if not row.real[j] or row.documents[i] != row.documents[j]:
        return False
    distance = row.places[i] - row.places[j]
    if config.causal and distance < 0:
        return False
    window, stride = config.variant.window, config.variant.stride
    if stride is None:
        return window is None or abs(distance) < window
    return abs(distance) % stride == 0 or (window is not None and abs(distance) < window)


def score(
    config: AttentionConfig, weights: Weights, query: Tensor, key: Tensor, row: Row, seen: Tensor
) -> Tensor:
    """What the softmax reads for each pair."""
    variant, position, scale = config.variant, config.position, score_scale(config, query)
    result = query @ key.mT * scale
    if variant.core == "soft":
        # Minus the squared distance over twice the root of the head's channels.
        result = -(query[:, :, None] - key[:, None]).square().sum(dim=-1) * (scale / 2)
    if variant.diagonal != "none":
        result = normalise_diagonal(result, seen, scale, variant.diagonal)
    if variant.soft_cap is not None:
        result = variant.soft_cap * torch.tanh(result / variant.soft_cap)
    own = torch.tensor(row.positions)
    if variant.plus:
        weight, bias = weights["plus.weight"], weights["plus.bias"]
        table = [[plus_table(i, j, weight.shape[1]) for j in row.positions] for i in row.positions]
        channels = result[..., None] + torch.tensor(table, dtype=torch.float64)
        result = (channels * weight[:, None, None]).sum(dim=-1) + bias[:, None, None]
    if variant.key_bias:
        table = weights["key_bias.weight"]
        bias = table[:, own.clamp(max=table.shape[1] - 1)]
        result = result * weights["key_bias.gain"][:, None, None] + bias[:, None]
    if variant.positions == "relative":
        reach = position.relative_distance
        lowest = 0 if config.causal else -reach
        index = (own[:, None] - own).clamp(lowest, reach) - lowest
        result = result + weights["relative.weight"][:, index]
    if variant.positions == "alibi":
        slopes = 2.0 ** (-8.0 * torch.arange(1, len(query) + 1).double() / len(query))
        result = result - slopes[:, None, None] * (own[:, None] - own).abs()
    return result / variant.temperature


def score_scale(config: AttentionConfig, query: Tensor) -> float:
    """The factor of products, temperature aside."""
    size = query.shape[-1] if config.scale.by == "head" else config.d_model
    size = size if config.scale.channels is None else config.scale.channels
    return config.identity_correction / math.sqrt(size)


def normalise_diagonal(scores: Tensor, seen: Tensor, scale: float, kind: str) -> Tensor:
    """Divide the score of a token with itself by the mean or the norm over what it sees.

    In paper 1's listing the products are divided, and the scale comes after that.
    """
    unscaled = kind.endswith("unscaled")
    own = scores.diagonal(dim1=1, dim2=2) / (scale if unscaled else 1.0)
    members = own[:, None] * seen
    if kind.startswith("mean"):
        size = members.sum(dim=-1) / seen.sum(dim=-1).clamp(min=1)
    else:
        size = torch.where(seen.any(dim=-1), members.square().sum(dim=-1), 1.0).sqrt()
    size = torch.where(seen.any(dim=-1), size, 1.0)
    divided = own / size * (scale if unscaled else 1.0)
    return torch.where(torch.eye(len(seen)).bool(), divided[:, :, None], scores)


def _value_is_rotated(config: AttentionConfig) -> bool:
    sharing = config.variant.sharing
    joined = sharing.value == sharing.key or config.position.rotates_value
    rotary = config.variant.positions == "rotary"
    return rotary and joined and config.position.value_rope != "none"


def _rotate(
    config: AttentionConfig, heads: Tensor, row: Row, *, back: bool = False, whole: bool = False
) -> Tensor:
    size, position = heads.shape[-1], config.position
    dim = size if whole else max(2, 2 * int(size * position.rotary_fraction / 2))
    return rotate(heads, row.positions, dim=dim, base=position.rotary_base, back=back)
