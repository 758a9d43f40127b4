"""What decoding multiplies and a model has learned: token by token, with plain loops.

Written from what the fields of a model mean and shares no code with ``qkvary.costs``, nor with the
properties of ``qkvary.arch`` that are derived. What is kept is in ``kept``.
"""

import math
from collections.abc import Iterator

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import (
    AttentionLayer,
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
)
from qkvary.arch.models import Model
from tests.reference.kept import head_dim, heads_of, inner_width, is_narrow, window_of

Matrix = tuple[int, int]
"""Channels in and out."""


def decode_products(model: Model, tokens: int, *, encoder_tokens: int) -> int:
    """Multiply-accumulates of the newest of ``tokens`` tokens, all others being remembered."""
    total = _matrix_products((part.inputs, part.outputs) for part in (*model.head, *model.others))
    for layer in model.layers:
        total += _rest_products(layer) + _step(layer.attention, tokens - 1, decoding=True)
        if layer.cross is not None:
            total += _cross_step(layer.cross, encoder_tokens, biases=encoder_tokens)
            total += _expansion(layer.cross, encoder_tokens, own_query=False)
            total += _latent_products(layer.cross.config, encoder_tokens, decoding=True)
    return total


def forward_products(model: Model, tokens: int, *, encoder_tokens: int, square: bool) -> int:
    """Multiply-accumulates of a whole sequence with logits for every token."""
    total = 0
    for now in range(tokens):
        total += _matrix_products((p.inputs, p.outputs) for p in (*model.head, *model.others))
        for layer in model.layers:
            total += _rest_products(layer)
            total += _step(layer.attention, now, decoding=False, whole=tokens if square else None)
            if layer.cross is not None:
                biases = encoder_tokens if now == 0 else 0
                total += _cross_step(layer.cross, encoder_tokens, biases=biases)
    for layer in model.layers:
        if layer.cross is not None:
            total += encoder_tokens * _matrix_products(_stored_matrices(layer.cross))
            total += encoder_tokens * _latent_products(layer.cross.config, 0, decoding=False)
    if model.encoder is not None:
        for now in range(encoder_tokens):
            total += _matrix_products((p.inputs, p.outputs) for p in model.encoder.stem)
            for layer in model.encoder.layers:
                total += _rest_products(layer)
                total += _encoder_step(layer.attention, now, encoder_tokens, square=square)
    return total


def _matrix_products(matrices: Iterator[Matrix]) -> int:
    return sum(inputs * outputs for inputs, outputs in matrices)


def _rest_products(layer: Layer) -> int:
    """What one token multiplies outside attention."""
    total = _matrix_products((part.inputs, part.outputs // part.groups) for part in layer.others)
    for part in layer.feed_forward:
        if isinstance(part, Experts):
            total += sum(_feed_forward(part.expert) for _ in range(part.active))
            total += 0 if part.shared is None else _feed_forward(part.shared)
            total += 0 if part.router is None else part.router.inputs * part.router.outputs
        else:
            total += _feed_forward(part)
    return total + layer.products


def _feed_forward(part: FeedForward) -> int:
    return (3 if part.gated else 2) * part.d_model * part.d_ff


def _step(attention: AttentionLayer, now: int, *, decoding: bool, whole: int | None = None) -> int:
    """One token through one layer; of a square of ``whole`` tokens every pair counts."""
    seen = [j for j in range(now + 1) if now - j < window_of(attention)]
    if whole is not None:
        seen = list(range(whole))
    if isinstance(attention, ProjectedAttention):
        made = list(_query_matrices(attention.config))
        remade = decoding and attention.storage.startswith("input")
        if attention.reads_layer is None and not remade:
            halves = decoding and attention.storage == "latent"
            made += _first_halves(attention) if halves else _stored_matrices(attention)
        total = _matrix_products(iter(made))
        total += _expansion(attention, len(seen), own_query=True) if decoding else 0
        total += _latent_products(attention.config, len(seen), decoding=decoding)
        biases = len(seen) if decoding else 1
        return total + _pair_products(attention.config, len(seen), biases)
    if isinstance(attention, LatentAttention):
        return _latent_step(attention, len(seen), absorbed=decoding)
    tokens, top = (now + 1, attention.index_top) if whole is None else (whole, whole)
    return _compressed_step(attention, len(seen), _closed(attention, tokens), top)


def _encoder_step(attention: AttentionLayer, now: int, tokens: int, *, square: bool) -> int:
    assert isinstance(attention, ProjectedAttention)
    seen = [j for j in range(tokens) if square or abs(now - j) < window_of(attention)]
    made = [*_query_matrices(attention.config), *_stored_matrices(attention)]
    total = _latent_products(attention.config, len(seen), decoding=False)
    return total + _matrix_products(iter(made)) + _pair_products(attention.config, len(seen), 1)


def _cross_step(cross: ProjectedAttention, encoder_tokens: int, *, biases: int) -> int:
    """One token of the decoder; what is stored of the encoder's tokens is made elsewhere."""
    config, sharing = cross.config, cross.config.variant.sharing
    made = list(_query_matrices(config))
    if sharing.query in (sharing.key, sharing.value):
        made += [m for source, m in _named_matrices(config) if source == sharing.query]
    return _matrix_products(iter(made)) + _pair_products(config, encoder_tokens, biases)


def _latent_products(config: AttentionConfig, keys: int, *, decoding: bool) -> int:
    """Key and value of one token's latent, or query and mixture taken into the latents."""
    latent, heads, size = config.variant.latent or 0, config.num_heads, head_dim(config)
    if not latent or not decoding:
        return 2 * latent * heads_of(config, config.variant.sharing.key) * size
    total = 2 * heads * size * latent
    for _ in range(keys):
        total += 2 * heads * latent - 2 * heads * size
    return total


def _pair_products(config: AttentionConfig, keys: int, biases: int) -> int:
    """Scores of one query with its keys, its mixture of values, and the bias of its keys."""
    heads, size, position = config.num_heads, head_dim(config), config.position
    total = 0
    for _ in range(keys):
        total += heads * size + heads * size + heads * (config.variant.decoupled or 0)
    if not (config.variant.plus or config.variant.key_bias):
        return total
    maps = heads if position.plus_per_head else 1
    rows = 2 * math.ceil(position.plus_features / 4)
    for _ in range(biases if config.variant.plus else 0):
        total += maps * max(0, position.plus_features - rows)
    if config.variant.diagonal == "none" and config.variant.soft_cap is None:
        # The bias is a further channel of a key, one for each query head that has its own.
        group = heads // (config.variant.num_kv_heads or heads)
        for _ in range(keys):
            total += heads * (group if position.plus_per_head else 1)
    return total


def _named_matrices(config: AttentionConfig) -> Iterator[tuple[str, Matrix]]:
    variant, d_model = config.variant, config.d_model
    sharing = variant.sharing
    if variant.decoupled is not None:
        yield "q_rope", (d_model, config.num_heads * variant.decoupled)
        yield "k_rope", (d_model, variant.decoupled)
    for source in {sharing.query, sharing.key, sharing.value} - {"x"}:
        width, inner = heads_of(config, source) * head_dim(config), inner_width(config, source)
        width = variant.latent or width if source == sharing.key else width
        if inner is None:
            yield source, (d_model, width)
        else:
            yield source, (d_model, inner)
            yield source, (inner, width)


def _stored_matrices(attention: ProjectedAttention) -> Iterator[Matrix]:
    sharing = attention.config.variant.sharing
    for source, matrix in _named_matrices(attention.config):
        if source in (sharing.key, sharing.value, "k_rope"):
            yield matrix


def _query_matrices(config: AttentionConfig) -> Iterator[Matrix]:
    sharing, size = config.variant.sharing, head_dim(config)
    for source, matrix in _named_matrices(config):
        if source not in (sharing.key, sharing.value, "k_rope"):
            yield matrix
    if config.variant.query_form == "map":
        for _ in range(config.num_heads):
            yield size, size
    yield config.num_heads * size, config.d_model


def _first_halves(attention: ProjectedAttention) -> Iterator[Matrix]:
    """Of narrow sources the matrix that leads into what is stored, of others all of them."""
    config, sharing = attention.config, attention.config.variant.sharing
    halved: set[str] = set()
    for source, matrix in _named_matrices(config):
        if source in (sharing.key, sharing.value, "k_rope") and source not in halved:
            yield matrix
        if is_narrow(config, source):
            halved.add(source)


def _widening(attention: ProjectedAttention, keys: int, *, own_query: bool) -> int:
    """What a decoded token adds where latents are stored."""
    config, sharing = attention.config, attention.config.variant.sharing
    heads, size = config.num_heads, head_dim(config)
    total = 0
    for source in {sharing.key, sharing.value}:
        if not is_narrow(config, source):
            continue
        inner, width = inner_width(config, source) or 0, heads_of(config, source) * size
        again = sum(inner * width for _ in range(keys))
        absorbed = inner * width if own_query and sharing.query == source else 0
        for role in (sharing.key, sharing.value):
            if role == source:
                absorbed += heads * size * inner
                absorbed += sum(heads * inner - heads * size for _ in range(keys))
        needed = source == sharing.key and _needs_keys(attention)
        total += again if needed else min(again, absorbed)
    return total


def _needs_keys(attention: ProjectedAttention) -> bool:
    variant = attention.config.variant
    rotated = variant.positions == "rotary"
    normed = variant.kv_norm or variant.head_norm != "none" or attention.norms
    return bool(rotated or normed or variant.diagonal != "none" or variant.latent)


def _expansion(attention: ProjectedAttention, keys: int, *, own_query: bool) -> int:
    """What a decoded token adds where keys and values are made of what is stored in their place.

    A query that shares their projection is among what is made, unless it is absorbed.
    """
    config, sharing = attention.config, attention.config.variant.sharing
    heads, size, d_model = config.num_heads, head_dim(config), config.d_model
    if attention.storage == "latent":
        return _widening(attention, keys, own_query=own_query)
    if attention.storage == "keys":
        key, value = (heads_of(config, source) * size for source in (sharing.key, sharing.value))
        return sum(key * value for _ in range(keys))
    if not attention.storage.startswith("input"):
        return 0
    again = sum(_matrix_products(_stored_matrices(attention)) for _ in range(keys))
    if _needs_keys(attention):
        return again
    # Query and mixture taken into the width of the input, and both compared and mixed there; a
    # role that is the input itself is compared or mixed as it stands.
    absorbed = 0
    if own_query:
        absorbed += _matrix_products(
            matrix
            for source, matrix in _named_matrices(config)
            if source == sharing.query and source in (sharing.key, sharing.value)
        )
    absorbed += sum(d_model * (config.variant.decoupled or 0) for _ in range(keys))
    for source in (sharing.key, sharing.value):
        if source != "x":
            absorbed += heads * size * d_model
            absorbed += sum(heads * (d_model - size) for _ in range(keys))
    return min(again, absorbed)


def _latent_step(attention: LatentAttention, keys: int, *, absorbed: bool) -> int:
    """Keys and values are expanded from the latent, or query and mixture taken into it."""
    d_model, heads, latent = attention.d_model, attention.num_heads, attention.kv_rank
    nope, rope, value = attention.nope_dim, attention.rope_dim, attention.value_dim
    query, rank = heads * (nope + rope), attention.q_rank
    total = d_model * query if rank is None else d_model * rank + rank * query
    total += d_model * latent + d_model * rope + heads * value * d_model
    if absorbed:
        total += heads * nope * latent + heads * latent * value
        for _ in range(keys):
            total += heads * (latent + rope) + heads * latent
    else:
        total += latent * heads * nope + latent * heads * value
        for _ in range(keys):
            total += heads * (nope + rope) + heads * value
    return total


def _compressed_step(attention: CompressedAttention, near: int, closed: int, top: int) -> int:
    d_model, width = attention.d_model, attention.num_heads * attention.head_dim
    total = d_model * attention.q_rank + attention.q_rank * width + d_model * attention.head_dim
    total += (width // attention.o_groups) * attention.o_rank * attention.o_groups
    total += attention.o_groups * attention.o_rank * d_model
    for part in (attention.compressor, attention.indexer):
        if part is not None:
            total += 2 * d_model * part.width * (2 if part.overlapping else 1)
    picked = closed
    if attention.indexer is not None:
        queries = attention.index_heads * attention.indexer.width
        total += attention.q_rank * queries + d_model * attention.index_heads
        for _ in range(closed):
            total += queries
        picked = min(closed, top)
    for _ in range(near + picked):
        total += width + width
    return total


def _closed(attention: CompressedAttention, tokens: int) -> int:
    """Summaries that are closed after ``tokens`` tokens."""
    closed = waiting = 0
    for _ in range(tokens if attention.compressor else 0):
        waiting += 1
        assert attention.compressor is not None
        if waiting == attention.compressor.rate:
            closed, waiting = closed + 1, 0
    return closed


def learned_numbers(model: Model) -> int:
    """Entries of every matrix, table, bias and gain."""
    encoder = model.encoder
    total = model.entries
    outside = [*model.tables, *model.positions, *model.norms]
    outside += [] if encoder is None else [*encoder.positions, *encoder.norms]
    for part in outside:
        total += part.weights + part.biases
    stem = [] if encoder is None else [*encoder.stem]
    for linear in (*model.head, *model.others, *stem):
        # The matrix of a tied head is the embedding's.
        total += 0 if linear.tied else linear.inputs * linear.outputs // linear.groups
        total += linear.outputs if linear.bias else 0
    for layer in (*model.layers, *(() if encoder is None else encoder.layers)):
        total += _learned_by(layer)
    return total


def _learned_by(layer: Layer) -> int:
    total = layer.entries + _learned_attention(layer.attention)
    total += 0 if layer.cross is None else _learned_attention(layer.cross)
    for norm in (*layer.norms, *layer.attention.norms, *(layer.cross.norms if layer.cross else ())):
        total += norm.width * (2 if norm.bias else 1)
    for linear in layer.others:
        total += linear.inputs * linear.outputs // linear.groups
        total += linear.outputs if linear.bias else 0
    for part in layer.feed_forward:
        dense = [part] if isinstance(part, FeedForward) else [part.expert] * part.count
        if isinstance(part, Experts):
            dense += [] if part.shared is None else [part.shared]
            total += part.entries
            total += 0 if part.router is None else part.router.inputs * part.router.outputs
        for network in dense:
            total += _feed_forward(network)
            up = 2 if network.gated else 1
            total += up * network.d_ff + network.d_model if network.bias else 0
    return total


def _learned_attention(attention: AttentionLayer) -> int:
    if isinstance(attention, ProjectedAttention):
        return _learned_projected(attention)
    if isinstance(attention, LatentAttention):
        total = _latent_step(attention, 0, absorbed=False)
        into = attention.kv_rank + attention.rope_dim + (attention.q_rank or 0)
        return total + (into + attention.d_model if attention.bias else 0)
    # What a token multiplies without any key, attention sinks, and positions inside a summary.
    total = _compressed_step(attention, 0, 0, 0) + attention.num_heads
    for part in (attention.compressor, attention.indexer):
        if part is not None:
            total += part.rate * part.width * (2 if part.overlapping else 1)
    return total


def _learned_projected(attention: ProjectedAttention) -> int:
    config = attention.config
    sharing, position = config.variant.sharing, config.position
    total = attention.entries + _matrix_products(_query_matrices(config))
    borrowed = {sharing.key, sharing.value} if attention.reads_layer is not None else set[str]()
    shared = config.variant.latent or heads_of(config, sharing.key) * head_dim(config)
    total += shared if config.variant.kv_norm else 0
    if config.variant.head_norm == "qk-norm":
        total += 2 * head_dim(config)
    if config.variant.head_norm == "qk-norm-wide":
        total += (config.num_heads + heads_of(config, sharing.key)) * head_dim(config)
    total += _latent_products(config, 0, decoding=False)
    if config.variant.decoupled is not None and config.bias:
        total += config.num_heads * config.variant.decoupled * ("q_rope" not in attention.unbiased)
        own = not borrowed and "k_rope" not in attention.unbiased
        total += config.variant.decoupled * own
    if not borrowed:
        total += _matrix_products(_stored_matrices(attention))
    for source in {sharing.query, sharing.key, sharing.value} - {"x", *borrowed}:
        if config.bias and source not in attention.unbiased:
            own = heads_of(config, source) * head_dim(config)
            total += config.variant.latent or own if source == sharing.key else own
    total += config.d_model if config.out_bias else 0
    if config.variant.plus:
        total += (config.num_heads if position.plus_per_head else 1) * (position.plus_features + 1)
    if config.variant.key_bias:
        total += (config.num_heads if position.plus_per_head else 1) * (position.key_positions + 1)
    if config.variant.positions == "relative":
        for distance in range(-position.relative_distance, position.relative_distance + 1):
            total += config.num_heads if distance >= 0 or not config.causal else 0
    return total
