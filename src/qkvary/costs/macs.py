"""Multiply-accumulates of a forward pass and of one decoded token, derived from a model.

Only matrix products are counted; the count is half of what torch's flop counter reports for the
explicit kernel under the MATH attention backend. Elementwise work is not counted: norms,
activations, rotations, the softmax, relative biases, ALiBi and the diagonal normalisation.
Embedding look-ups are free.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import (
    AttentionLayer,
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
    RecurrentLayer,
)
from qkvary.arch.models import Model, count_kinds
from qkvary.arch.parts import Linear
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, Source
from qkvary.costs.terms import CORES, decode_term_macs, term_costs, term_macs

Pairs = Literal["square", "visible"]
"""The pairs of tokens that are counted: all, as the papers do, or those that no mask hides."""

Logits = Literal["all", "last"]
"""Which tokens get logits: all, as in training, or only the last, as in a prefill."""

TRAINING_FACTOR = 3
"""MACs of a training step relative to its forward pass: the backward pass takes twice as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MacCount:
    """The number of multiply-accumulates, by part."""

    projections: int
    """Input and output projections and query maps of all layers."""
    scores: int
    """Scores, score terms and weighted sums of values in all layers."""
    feed_forward: int
    """Feed-forward networks of all layers, with only the active experts."""
    head: int
    """The output head."""
    other: int = 0
    """All other parts: per-layer inputs, hyper-connections, and the stem of an encoder."""

    @property
    def attention(self) -> int:
        """MACs of attention: projections and scores."""
        return self.projections + self.scores

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return self.attention + self.feed_forward + self.head + self.other

    def to_dict(self) -> dict[str, int]:
        """Return the parts and their total."""
        return {**asdict(self), "total": self.total}


def visible_pairs(config: AttentionConfig, length: int) -> int:
    """Return the number of (query, key) pairs that no mask hides among ``length`` real tokens."""
    stride, window = config.variant.stride, config.variant.window
    reach = length if stride is None else 0
    if window is not None:
        reach = min(window, length)
    # Queries with their full reach, then those at the start, which see fewer keys.
    pairs = (length - reach) * reach + reach * (reach + 1) // 2
    if stride is not None:
        # Beyond the window every multiple of the stride, for queries that come late enough.
        first, last = -(-reach // stride), (length - 1) // stride
        pairs += (last - first + 1) * (2 * length - stride * (first + last)) // 2
    return pairs if config.causal else 2 * pairs - length


def visible_keys(attention: AttentionLayer, context: int) -> int:
    """Return how many stored entries the newest of ``context`` tokens reads, its own included.

    With a stride, the masked entries in the gaps are read too.
    """
    if isinstance(attention, ProjectedAttention):
        reach = attention.config.variant.reach
        return context if reach is None else min(reach, context)
    if isinstance(attention, RecurrentLayer):
        return 0
    if isinstance(attention, LatentAttention):
        return context if attention.most_keys is None else min(attention.most_keys, context)
    summaries = 0 if attention.compressor is None else context // attention.compressor.rate
    if attention.indexer:
        summaries = min(summaries, attention.index_top)
    return min(attention.window, context) + summaries


def projection_macs_per_token(config: AttentionConfig, source: Source) -> int:
    """Return the MACs of one token through one learned projection."""
    width, rank = config.width(source), config.rank(source)
    return config.d_model * width if rank is None else rank * (config.d_model + width)


def attention_projection_macs_per_token(config: AttentionConfig) -> int:
    """Return the MACs of one token through all projections of a layer. A query map is included."""
    return _stored_macs(config) + _query_and_output_macs(config)


def score_macs(
    config: AttentionConfig, length: int, pairs: Pairs, *, fills_cache: bool = False
) -> int:
    """Return the MACs of one layer's scores, score terms and weighted sums of values."""
    count = length * length if pairs == "square" else visible_pairs(config, length)
    core = CORES[config.variant.core]
    content = core.prompt_macs if fills_cache and core.prompt_macs else core.macs
    return content(config, length, count) + term_macs(config, length, count)


def feed_forward_macs_per_token(part: FeedForward | Experts) -> int:
    """Return the MACs of one token through one feed-forward network or its active experts."""
    if isinstance(part, FeedForward):
        return _count_weights(part.linears)
    return part.active * _count_weights(part.expert.linears) + _count_weights(part.always)


def forward_macs(
    model: Model,
    *,
    tokens: int,
    pairs: Pairs = "visible",
    logits: Logits = "all",
    encoder_tokens: int | None = None,
    fills_cache: bool = False,
) -> MacCount:
    """Return the MACs of one sequence: a forward pass of training, or the prefill of a prompt.

    Args:
        model: The model.
        tokens: Tokens of the sequence; with an encoder, only the decoder's tokens.
        pairs: The pairs of tokens that are counted.
        logits: The tokens that get logits.
        encoder_tokens: Number of encoder tokens, if the model does not fix it; by default the
            number of decoder tokens.
        fills_cache: Whether decoding follows, so that linear attention also computes its state
            after the last token.

    Raises:
        ValueError: for a number of tokens that is not positive.
    """
    _check(tokens)
    seen = model.count_encoder_tokens(encoder_tokens, tokens)
    layers = [
        (_forward_layer(layer, tokens, seen, pairs, fills_cache=fills_cache), count)
        for layer, count in count_kinds(model.layers)
    ]
    outside = sum(linear.weights * (tokens - linear.skipped_tokens) for linear in model.others)
    if model.encoder is not None:
        layers += [
            (_forward_layer(layer, seen, 0, pairs, fills_cache=False), count)
            for layer, count in count_kinds(model.encoder.layers)
        ]
        outside += seen * _count_weights(model.encoder.stem)
    return _sum(model, layers, logits=tokens if logits == "all" else 1, other=outside)


def decode_macs(model: Model, *, context: int, encoder_tokens: int | None = None) -> MacCount:
    """Return the MACs of decoding one token if all earlier tokens are in the cache.

    Decoding token by token takes as many MACs as one causal forward pass, with three exceptions.
    With a stride, masked pairs are computed too. The bias g(j) of ``+`` is computed again for
    every key. Latent attention computes scores and weighted values directly from latents.

    Args:
        model: Any model that decodes.
        context: Tokens attended to, the new one included.
        encoder_tokens: See :func:`forward_macs`.

    Raises:
        ValueError: for a context that is not positive.
    """
    _check(context)
    seen = model.count_encoder_tokens(encoder_tokens, context)
    layers = [
        (_decode_layer(layer, context, seen), count) for layer, count in count_kinds(model.layers)
    ]
    return _sum(model, layers, logits=1, other=_count_weights(model.others))


def _check(tokens: int) -> None:
    if tokens < 1:
        raise ValueError(f"expected a length of at least 1 token, got {tokens}")


def _sum(model: Model, layers: list[tuple[MacCount, int]], *, logits: int, other: int) -> MacCount:
    """Add up the layers, each times its number of occurrences, the output head and ``other``."""
    head = sum(linear.weights * (1 if linear.is_pooled else logits) for linear in model.head)
    return MacCount(
        projections=sum(count * layer.projections for layer, count in layers),
        scores=sum(count * layer.scores for layer, count in layers),
        feed_forward=sum(count * layer.feed_forward for layer, count in layers),
        head=head,
        other=other + sum(count * layer.other for layer, count in layers),
    )


def _forward_layer(
    layer: Layer, tokens: int, encoder_tokens: int, pairs: Pairs, *, fills_cache: bool
) -> MacCount:
    projections, scores = _forward_attention(
        layer.attention, tokens, pairs, fills_cache=fills_cache
    )
    if layer.cross is not None:
        config = layer.cross.config
        projections += tokens * _crossing_macs(config) + encoder_tokens * _stored_macs(config)
        across = tokens * encoder_tokens
        scores += CORES[config.variant.core].macs(config, encoder_tokens, across)
        scores += term_macs(config, encoder_tokens, across)
    return MacCount(
        projections=projections,
        scores=scores,
        feed_forward=tokens * sum(map(feed_forward_macs_per_token, layer.feed_forward)),
        head=0,
        other=tokens * _other_macs(layer),
    )


def _forward_attention(
    attention: AttentionLayer, tokens: int, pairs: Pairs, *, fills_cache: bool
) -> tuple[int, int]:
    """Return two numbers for a sequence: the MACs of a layer's projections and of its scores."""
    if isinstance(attention, ProjectedAttention):
        config = attention.config
        per_token = _query_and_output_macs(config)
        per_token += 0 if attention.reads_layer is not None else _stored_macs(config)
        scores = score_macs(config, tokens, pairs, fills_cache=fills_cache)
        return tokens * per_token, scores
    per_token = _count_weights(attention.linears)
    if isinstance(attention, RecurrentLayer):
        return tokens * per_token, tokens * attention.products
    if isinstance(attention, LatentAttention):
        every = tokens * tokens if pairs == "square" else tokens * (tokens + 1) // 2
        count, top = every, visible_keys(attention, tokens)
        if pairs == "visible":
            count = (tokens - top) * top + top * (top + 1) // 2
        width = attention.num_heads * (attention.key_dim + attention.value_dim)
        return tokens * per_token, count * width + every * _index_pair_macs(attention)
    return tokens * per_token, _compressed_scores(attention, tokens, pairs)


def _decode_layer(layer: Layer, context: int, encoder_tokens: int) -> MacCount:
    attention = layer.attention
    keys = visible_keys(attention, context)
    if isinstance(attention, ProjectedAttention):
        config = attention.config
        projections = _query_and_output_macs(config) + _made_macs(attention)
        core = CORES[config.variant.core]
        scores = decode_term_macs(config, keys) + _expansion_macs(attention, keys)
        scores += (
            core.decode_macs(config, keys) if core.decode_macs else core.macs(config, keys, keys)
        )
    else:
        # When a latent's expansion is absorbed into query and output, it takes as many products as
        # expanding one token.
        projections = _count_weights(attention.linears)
        is_recurrent = isinstance(attention, RecurrentLayer)
        scores = attention.products if is_recurrent else keys * _stored_pair_macs(attention)
    if isinstance(attention, LatentAttention):
        scores += context * _index_pair_macs(attention)
    if isinstance(attention, CompressedAttention) and attention.indexer:
        summaries = context // attention.indexer.rate
        scores += summaries * attention.index_heads * attention.indexer.width
    if layer.cross is not None:
        config = layer.cross.config
        projections += _crossing_macs(config)
        scores += CORES[config.variant.core].macs(config, encoder_tokens, encoder_tokens)
        scores += decode_term_macs(config, encoder_tokens)
    return MacCount(
        projections=projections,
        scores=scores,
        feed_forward=sum(map(feed_forward_macs_per_token, layer.feed_forward)),
        head=0,
        other=_other_macs(layer),
    )


def _expansion_macs(attention: ProjectedAttention, keys: int) -> int:
    """Return the extra MACs of a cache that stores inputs or latents instead of keys and values.

    The cheaper of two ways is counted. The first way projects all stored inputs again, including
    that of the new token. In the second way, the query and output projections absorb the key and
    value projections, and scores and values are computed over the whole width of the layer; some
    keys do not allow this. Latents have the same two ways, with the second matrices of low-rank
    projections in place of projections.
    """
    config = attention.config
    if attention.storage == "latent":
        return sum(_up_projection_macs(attention, one, keys) for one in config.variant.cached)
    if attention.storage != "input":
        return 0
    again = keys * _stored_macs(config)
    if not _absorbs_key(attention):
        return again
    sharing = config.variant.sharing
    # An identity role has no projection to absorb; each head meets only its own channels.
    learned = sum(source != IDENTITY for source in (sharing.key, sharing.value))
    absorbed = learned * _absorbed_macs(config, config.d_model, keys)
    if KEY_ROPE in config.variant.cached:
        absorbed += keys * projection_macs_per_token(config, KEY_ROPE)
    if sharing.query in _stored(config):
        absorbed += projection_macs_per_token(config, sharing.query)
    return min(again, absorbed)


def _up_projection_macs(attention: ProjectedAttention, source: Source, keys: int) -> int:
    """Return the MACs of expanding the stored latents of a projection; 0 if it has no latents."""
    config = attention.config
    inner = config.latent(source)
    if inner is None:
        return 0
    again = keys * inner * config.width(source)
    sharing = config.variant.sharing
    if sharing.key == source and not _absorbs_key(attention):
        return again
    readers = (sharing.key, sharing.value).count(source)
    absorbed = readers * _absorbed_macs(config, inner, keys)
    if sharing.query == source:
        absorbed += inner * config.width(source)
    return min(again, absorbed)


def _absorbed_macs(config: AttentionConfig, inner: int, keys: int) -> int:
    """Return the MACs of keys or values whose projection another projection absorbs."""
    heads, size = config.num_heads, config.size_per_head
    return heads * size * inner + keys * heads * (inner - size)


def _absorbs_key(attention: ProjectedAttention) -> bool:
    """Return whether the query can absorb the projection of the key."""
    rules, core = term_costs(attention.config), attention.config.variant.core
    return core == "softmax" and all(cost.absorbs_key for cost in rules) and not attention.norms


def _stored_pair_macs(attention: LatentAttention | CompressedAttention) -> int:
    """Return the MACs of the scores and weighted values of one stored entry, over all heads."""
    if isinstance(attention, LatentAttention):
        return attention.num_heads * (attention.stored_width + attention.kv_rank)
    return 2 * attention.num_heads * attention.head_dim


def _index_pair_macs(attention: LatentAttention) -> int:
    """Return the MACs of scoring one indexer key against one indexer query."""
    index = attention.own_indexer
    return 0 if index is None else index.heads * index.width


def _compressed_scores(attention: CompressedAttention, tokens: int, pairs: Pairs) -> int:
    if pairs == "square":
        closed = [tokens // part.rate for part in attention.compressors]
        summaries = tokens * closed[0] if closed else 0
        count, indexed = tokens * tokens + summaries, tokens * closed[-1] if closed else 0
    else:
        reach = min(attention.window, tokens)
        count = (tokens - reach) * reach + reach * (reach + 1) // 2
        indexed = 0
        if attention.compressor:
            top = attention.index_top if attention.indexer else None
            count += _closed_summaries(attention.compressor.rate, tokens, top)
        if attention.indexer:
            indexed = _closed_summaries(attention.indexer.rate, tokens, None)
    index_width = attention.index_heads * (attention.indexer.width if attention.indexer else 0)
    return count * _stored_pair_macs(attention) + indexed * index_width


def _closed_summaries(rate: int, tokens: int, top: int | None) -> int:
    """Return the sum over t = 1 ... tokens of ``min(t // rate, top)``."""
    capped = 0 if top is None else max(0, tokens + 1 - rate * top)
    free = tokens - capped
    full, rest = divmod(free + 1, rate)
    return rate * full * (full - 1) // 2 + full * rest + capped * (top or 0)


def _stored(config: AttentionConfig) -> tuple[Source, ...]:
    return tuple(source for source in config.variant.projections if source in config.variant.cached)


def _stored_macs(config: AttentionConfig) -> int:
    """Return the MACs of one token through the projections whose results are cached."""
    return sum(projection_macs_per_token(config, source) for source in _stored(config))


def _made_macs(attention: ProjectedAttention) -> int:
    """Return the MACs of computing the cache entry of one token."""
    config = attention.config
    if attention.storage == "input" or attention.reads_layer is not None:
        return 0
    if attention.storage != "latent":
        return _stored_macs(config)
    inner: dict[Source, int | None] = {source: config.latent(source) for source in _stored(config)}
    return sum(
        projection_macs_per_token(config, source) if width is None else config.d_model * width
        for source, width in inner.items()
    )


def _query_and_output_macs(config: AttentionConfig) -> int:
    """Return the MACs of one token in the query map and the projections that are not cached."""
    variant = config.variant
    uncached: list[Source] = [
        source for source in variant.projections if source not in variant.cached
    ]
    queries = sum(projection_macs_per_token(config, source) for source in uncached)
    heads, head_dim = config.num_heads, config.size_per_head
    query_map = heads * head_dim**2 if variant.query_form == "map" else 0
    return queries + query_map + heads * head_dim * config.d_model


def _crossing_macs(config: AttentionConfig) -> int:
    """Return the MACs of a decoder token in cross attention, without keys and values."""
    # The query is projected from decoder tokens, even if it shares the projection of the key.
    query = config.variant.sharing.query
    again = projection_macs_per_token(config, query) if query in _stored(config) else 0
    return again + _query_and_output_macs(config)


def _other_macs(layer: Layer) -> int:
    return layer.products + _count_weights(layer.others)


def _count_weights(linears: Iterable[Linear]) -> int:
    return sum(linear.weights for linear in linears)
