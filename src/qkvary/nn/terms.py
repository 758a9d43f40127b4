"""Attention scores as an object, and the score terms that change this object.

Each score term in ``arch.terms`` has one class here, with the same name. The class sets a field of
:class:`Scores`. The role terms are in ``nn.projections``.
"""

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.terms import OWN
from qkvary.arch.variants import Variant
from qkvary.nn.initializer import Initializer
from qkvary.nn.layout import Layout, find_far, interleave_sinusoids
from qkvary.nn.shapes import Pairs

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Attention scores. Each part of the following formula is a field.

    ``(gain * scale (q k^T + rope) + key_bias + pair_bias) / temperature``
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch kv_heads keys head_dim"]
    scale: float
    layout: Layout
    query_rope: Float[Tensor, "batch heads queries rope_dim"] | None = None
    """The rotated queries of decoupled positions."""
    key_rope: Float[Tensor, "batch 1 keys rope_dim"] | None = None
    """The rotated key of decoupled positions, shared by all heads."""
    products: Pairs | None = None
    """The matrix ``scale q k^T`` after a term has changed single entries; None before."""
    gain: Float[Tensor, "sets 1 1"] | None = None
    """A learned factor that multiplies ``scale (q k^T + rope)``."""
    key_bias: Float[Tensor, "rows keys sets"] | None = None
    pair_bias: Float[Tensor, "rows heads queries keys"] | None = None
    temperature: float = 1.0
    """The number that divides the sum of all other parts."""
    log_decay: Float[Tensor, " kv_heads"] | None = None
    """For linear attention: logarithm of the factor by which weights decay with each token."""

    def fold(self) -> tuple[Tensor, Tensor, float]:
        """Return q, k and a scale so that ``scale q k^T`` are the scores without the pair bias."""
        scale, query, key = self.scale / self.temperature, self.query, self.key
        if self.query_rope is not None and self.key_rope is not None:
            rope = self.key_rope.expand(-1, key.shape[1], -1, -1)
            query = torch.cat((query, self.query_rope), dim=-1)
            key = torch.cat((key, rope), dim=-1)
        if self.gain is None and self.key_bias is None:
            return query, key, scale
        query = query * (scale if self.gain is None else self.gain * scale)
        if self.key_bias is not None:
            query, key = append_key_bias(query, key, self.key_bias, 1.0 / self.temperature)
        return query, key, 1.0

    def multiply(self) -> Pairs:
        """Return the scores without the pair bias, as a new tensor."""
        if self.products is None:
            query, key, scale = self.fold()
            return content_scores(query if scale == 1.0 else query * scale, key)
        scores = self.products if self.gain is None else self.products * self.gain
        if self.key_bias is not None:
            scores = scores + self.key_bias.mT.unsqueeze(-2)
        return scores / self.temperature

    def take_rope(self) -> "tuple[Scores, Float[Tensor, 'batch heads queries keys'] | None]":
        """Separate the scores of decoupled positions from the other scores.

        Return the scores without decoupled positions, and the products of the decoupled positions
        (or None). In this form, the key can also be the value, and the rotary key is not copied for
        each KV head.
        """
        if self.query_rope is None or self.key_rope is None:
            return self, None
        wide = torch.promote_types(self.query.dtype, torch.float32)
        query = self.query_rope.to(wide) * (self.scale / self.temperature)
        products = content_scores(query, self.key_rope.to(wide))
        return replace(self, query_rope=None, key_rope=None), products

    def cooled_pair_bias(self) -> Float[Tensor, "rows heads queries keys"] | None:
        """Return the pair bias, divided by the temperature."""
        if self.pair_bias is None or self.temperature == 1.0:
            return self.pair_bias
        return self.pair_bias / self.temperature


def content_scores(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
) -> Pairs:
    """Return the dot products of each query head with the key head of its group."""
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    if heads == kv_heads:
        return query @ key.mT
    folded = query.reshape(batch, kv_heads, heads // kv_heads * queries, query.shape[-1])
    return (folded @ key.mT).view(batch, heads, queries, keys)


def append_key_bias(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    bias: Float[Tensor, "rows keys sets"],
    factor: float,
) -> tuple[
    Float[Tensor, "batch heads queries extended_dim"],
    Float[Tensor, "batch kv_heads keys extended_dim"],
]:
    """Extend query and key so that their dot products include ``factor`` times the key's bias.

    [q, c] . [k, g] = q . k + c g. The bias therefore needs no pass over the score map, forward or
    backward. It takes one extra channel, or one per query head of a group if heads have separate
    biases.
    """
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    channels = max(1, bias.shape[-1] // kv_heads)
    own = torch.eye(channels, dtype=query.dtype, device=query.device) * factor
    constant = own[:, None].expand(batch, heads // channels, channels, queries, channels)
    added = bias.unflatten(-1, (-1, channels)).transpose(1, 2)
    added = added.expand(batch, kv_heads, keys, channels)
    return torch.cat((query, constant.flatten(1, 2)), dim=-1), torch.cat((key, added), dim=-1)


class ScoreTerm(nn.Module):
    """Changes the scores of a layer. It is a module because some terms have parameters."""

    is_plain: ClassVar[bool] = False
    """True if the scores keep the form ``scale q k^T``. Decoding kernels compute this form."""
    needs_products: ClassVar[bool] = False
    """True if the term changes single entries of the matrix ``scale q k^T``. Fused kernels never
    store this matrix."""
    is_learned_bias: ClassVar[bool] = False
    """True if the term adds a learned bias. CPUs have no fused kernel for learned biases."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.config = config

    def initialize(self, initializer: Initializer, init: Initialization, /) -> None:
        """Initialise the parameters."""

    def forward(self, scores: Scores) -> Scores:
        """Return the scores after this term."""
        raise NotImplementedError


class DiagonalNorm(ScoreTerm):
    """Divides the diagonal of the scores by its mean or norm (:func:`normalise_diagonal`)."""

    needs_products = True
    own_scale: float | None = 1.0
    """The factor that multiplies the normalised diagonal; ``None`` means the score scale."""

    def forward(self, scores: Scores) -> Scores:
        """Compute the products of query and key, and normalise the diagonal of the products."""
        products = normalise_diagonal(
            content_scores(scores.query * scores.scale, scores.key),
            scores.key.square().sum(dim=-1) * scores.scale,
            self.config,
            factor=scores.scale if self.own_scale is None else self.own_scale,
            valid=scores.layout.attention_mask,
            documents=scores.layout.document_ids,
        )
        return replace(scores, products=products)


class UnscaledDiagonalNorm(DiagonalNorm):
    """Normalises the diagonal before scores are scaled, so that the scale applies to it too."""

    own_scale = None


class SoftCap(ScoreTerm):
    """Keeps scores within a bound: ``c tanh(scores / c)``.

    Source: Gemma Team 2024, "Gemma 2", section 2.
    """

    needs_products = True

    def forward(self, scores: Scores) -> Scores:
        """Return the scores with capped products."""
        cap = self.config.variant.soft_cap or 1.0
        # The temperature divides the capped scores, so it is set to 1 here.
        found = replace(scores, temperature=1.0).multiply()
        return replace(scores, products=cap * torch.tanh(found / cap))


class PlusBias(ScoreTerm):
    """The papers' ``+`` in its reduced form: scores become ``tau a_ij + g(j)``.

    The published form adds a fixed 2D sinusoid P[i,j] to m copies of the scaled score map and maps
    them back with a 1x1 linear (w, b). Each channel of P depends only on the row or only on the
    column; under the softmax the row part and b cancel, so

        tau = sum_c w_c,    g(j) = sum over column channels c of w_c E(j)_c.

    The learned parameters are w and b, the m + 1 parameters of the published form. Under Adam they
    train differently from tau and g. There is no joint (i, j) term, and tau starts with a random
    sign.

    Source: Kayyam et al. 2026, section 2; the reduction is proved in the tests.
    """

    is_learned_bias = True

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        position = config.position
        sets = config.num_heads if position.plus_per_head else 1
        self.row_features = position.plus_row_features
        self.weight = nn.Parameter(torch.empty(sets, position.plus_features))
        self.bias = nn.Parameter(torch.empty(sets))

    def initialize(self, initializer: Initializer, init: Initialization, /) -> None:
        """Initialise w and b like a linear layer with m inputs and 1 output."""
        features = self.weight.shape[1]
        initializer.weight("plus.weight", self.weight, init, init.weight_std(features, 1))
        initializer.bias("plus.bias", self.bias, init, features)

    def forward(self, scores: Scores) -> Scores:
        """Multiply the scores by tau and add the key bias g(j)."""
        gain = self.weight.sum(dim=-1)[:, None, None]
        return replace(scores, gain=gain, key_bias=self.key_bias(scores.layout.key_positions))

    def key_bias(self, key_positions: Int[Tensor, "rows keys"]) -> Float[Tensor, "rows keys sets"]:
        """Return the bias g(j) of every key."""
        width = self.weight.shape[1] - self.row_features
        features = interleave_sinusoids(key_positions, self.row_features)[..., :width]
        # The published bias b shifts a whole row. It is kept as a parameter, and adding it here
        # costs nothing and gives it the zero gradient of the published form.
        weight = self.weight[:, self.row_features :]
        return F.linear(features.to(weight.dtype), weight, self.bias)


class KeyBias(ScoreTerm):
    """Learns tau and the bias of each position directly: scores become ``tau a_ij + b(j)``.

    :class:`PlusBias` computes scores of the same form from other parameters. Each layer or each
    head has its own tau and b.
    """

    is_learned_bias = True

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        sets = config.num_heads if config.position.plus_per_head else 1
        self.gain = nn.Parameter(torch.empty(sets))
        self.weight = nn.Parameter(torch.empty(sets, config.position.key_positions))

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Initialise tau to 1 and the biases to zero."""
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.weight)

    def forward(self, scores: Scores) -> Scores:
        """Multiply the scores by tau and add the key bias b(j)."""
        index = scores.layout.key_positions.clamp(0, self.weight.shape[1] - 1)
        bias = self.weight[:, index].permute(1, 2, 0)
        return replace(scores, gain=self.gain[:, None, None], key_bias=bias)


class RelativeBias(ScoreTerm):
    """Adds a bias b_h(i - j) that is learned for each head and each clipped distance.

    The bias is not symmetric in i and j.
    """

    is_learned_bias = True

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.furthest = config.position.relative_distance
        self.nearest = 0 if config.causal else -self.furthest
        size = self.furthest - self.nearest + 1
        self.weight = nn.Parameter(torch.empty(config.num_heads, size))

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Initialise the biases to zero."""
        nn.init.zeros_(self.weight)

    def forward(self, scores: Scores) -> Scores:
        """Add the bias of every pair."""
        distance = scores.layout.distances()
        index = distance.clamp(self.nearest, self.furthest) - self.nearest
        return replace(scores, pair_bias=self.weight[:, index].transpose(0, 1))


class Alibi(ScoreTerm):
    """Subtracts the distance |i - j| times a slope per head, 2^(-8 (h+1) / heads).

    Source: Press et al. 2022, "Train Short, Test Long". The bias is symmetric in i and j.
    """

    def forward(self, scores: Scores) -> Scores:
        """Add the bias of every pair."""
        num_heads, device = self.config.num_heads, scores.query.device
        heads = torch.arange(1, num_heads + 1, dtype=torch.float64, device=device)
        slopes = torch.exp2(-8.0 * heads / num_heads)
        distance = scores.layout.distances().abs().double()
        bias = -slopes[:, None, None] * distance[:, None]
        return replace(scores, pair_bias=bias.to(scores.query.dtype))


class Temperature(ScoreTerm):
    """Divides the scores by a constant before the softmax."""

    is_plain = True

    def forward(self, scores: Scores) -> Scores:
        """Divide the scores by the temperature."""
        return replace(scores, temperature=scores.temperature * self.config.variant.temperature)


class Decay(ScoreTerm):
    """Multiplies the weight of a key that is n tokens before the query by f^n (linear attention).

    A fixed factor, or the initial value of a learned one, is 1 - 2^(-5 - h) for KV head h. The
    distance n counts tokens by their index in the sequence, whatever their positions are.

    Source: Sun et al. 2023, "Retentive Network", section 2.2 (the fixed factors).
    """

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        learned = config.variant.decay == "learned"
        self.weight = nn.Parameter(torch.empty(config.num_kv_heads)) if learned else None

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Initialise learned factors to the values of the fixed factors."""
        if self.weight is not None:
            with torch.no_grad():
                self.weight.copy_(self.fixed_logits(self.weight.device))

    def forward(self, scores: Scores) -> Scores:
        """Return the scores with the logarithm of the decay factors."""
        device = scores.query.device
        logits = self.fixed_logits(device) if self.weight is None else self.weight
        wide = torch.promote_types(scores.query.dtype, torch.float32)
        return replace(scores, log_decay=F.logsigmoid(logits.to(wide)))

    def fixed_logits(self, device: torch.device) -> Float[Tensor, " kv_heads"]:
        """Return the inverse sigmoid of the fixed decay factor of each KV head."""
        heads = torch.arange(self.config.num_kv_heads, dtype=torch.float64, device=device)
        return torch.log(torch.exp2(heads + 5.0) - 1.0)


TERMS: Mapping[str, type[ScoreTerm]] = {
    "diagonal": DiagonalNorm,
    "unscaled-diagonal": UnscaledDiagonalNorm,
    "soft_cap": SoftCap,
    "plus": PlusBias,
    "key_bias": KeyBias,
    "relative": RelativeBias,
    "alibi": Alibi,
    "temperature": Temperature,
    "decay": Decay,
}
"""The class of each score term, by the name of the term."""


def term_classes(variant: Variant) -> dict[str, type[ScoreTerm]]:
    """Return the classes of the score terms of a variant by name, in the order of application."""
    known = {term.name: TERMS[term.name] for term in variant.terms if term.name in TERMS}
    own = own_class(variant, ScoreTerm)
    return known if own is None else {**known, "own": own}


def own_class(variant: Variant, kind: type[T]) -> type[T] | None:
    """Return a variant's user-defined class if it is a subclass of ``kind``, else None."""
    made = None if variant.own is None else OWN[variant.own].made
    return made if made is not None and issubclass(made, kind) else None


def normalise_diagonal(
    scores: Pairs,
    squares: Float[Tensor, "batch heads keys"],
    config: AttentionConfig,
    *,
    factor: float = 1.0,
    valid: Bool[Tensor, "batch keys"] | None,
    documents: Int[Tensor, "batch keys"] | None,
) -> Pairs:
    """Divide the diagonal of K K^T by its mean or by its norm.

    For each query, the mean or norm is taken over the tokens that the query sees: a running mean in
    causal layers, and the mean over the window in layers with a window. ``squares`` is the scaled
    diagonal for all keys. ``factor`` multiplies the normalised diagonal.

    Source: Kayyam et al. 2026, appendix A.2, figure 5.
    """
    by_norm = config.variant.diagonal.startswith("norm")
    # Fourth powers leave the range of float16, and sums of many exceed the precision of bfloat16.
    squares = squares.to(torch.promote_types(squares.dtype, torch.float32))
    present = torch.ones_like(squares) if valid is None else valid[:, None].to(squares.dtype)
    terms = (squares.square() if by_norm else squares) * present
    members = _find_members(squares, documents, config)
    total = _sum_diagonal(terms, members, causal=config.causal)
    count = _sum_diagonal(present, members, causal=config.causal)
    # If no real token was seen yet there is nothing to divide by, and the pair is masked.
    total = torch.where(count > 0, total, 1.0).clamp(min=torch.finfo(squares.dtype).tiny)
    ratio = squares / (total.sqrt() if by_norm else total / count.clamp(min=1.0))
    queries, keys = scores.shape[-2:]
    own = torch.eye(keys, dtype=torch.bool, device=scores.device)[keys - queries :]
    ratio = ratio if factor == 1.0 else ratio * factor
    return torch.where(own, ratio[..., None, :].to(scores.dtype), scores)


def _find_members(
    squares: Float[Tensor, "batch heads keys"],
    documents: Int[Tensor, "batch keys"] | None,
    config: AttentionConfig,
) -> Float[Tensor, "rows 1 keys keys"] | None:
    """Return 1 for pairs in the same document, window and stride, else 0; None if all are 1."""
    variant, keys = config.variant, squares.shape[-1]
    members: list[Tensor] = []
    if documents is not None:
        members.append(documents[:, None, :, None] == documents[:, None, None, :])
    far = find_far(keys, keys, variant.window, variant.stride, squares.device)
    if far is not None:
        members.append(~far[None, None])
    return functools.reduce(operator.and_, members).to(squares.dtype) if members else None


def _sum_diagonal(terms: Tensor, members: Tensor | None, *, causal: bool) -> Tensor:
    """Return, for each token, the sum of ``terms`` over the tokens that it sees."""
    if members is None:
        return terms.cumsum(dim=-1) if causal else terms.sum(dim=-1, keepdim=True)
    return (terms[..., None, :] * (members.tril() if causal else members)).sum(dim=-1)
