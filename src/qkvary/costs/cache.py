"""Cache size in bytes: how much decoding stores, and how much it reads for one token.

A layer keeps the tokens that a later token can still see. With a window of w tokens, these are the
w - 1 newest tokens; with a stride, they are all tokens. A layer of linear attention keeps sums
instead of tokens, from the first token on. The bytes read for one token include that token's own
entry.
"""

from collections.abc import Sequence

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import (
    AttentionLayer,
    CompressedAttention,
    LatentAttention,
    Layer,
    ProjectedAttention,
    RecurrentLayer,
)
from qkvary.arch.models import Model, map_layers
from qkvary.arch.networks import Network
from qkvary.arch.sharing import KEY_ROPE
from qkvary.costs.formats import SCALE, Dtype, Format, parse_format
from qkvary.costs.macs import visible_keys


def layer_cache_bytes_per_token(config: AttentionConfig, dtype: Dtype) -> int:
    """Return the bytes that a causal layer keeps per token; 0 if it keeps a state."""
    is_state = config.variant.keeps_state
    return 0 if is_state else token_bytes(ProjectedAttention(config=config), dtype)


def cache_bytes_per_token(config: Network, dtype: Dtype = "float32") -> int | None:
    """Return the bytes that all layers keep per token while no window is full.

    The result is ``None`` for a network with a bidirectional layer, which cannot decode.
    """
    size = sum(layer_cache_bytes_per_token(layer, dtype) for layer in config.layers)
    return size if all(layer.causal for layer in config.layers) else None


def layer_cache_bytes(
    attention: AttentionLayer, *, context: int, stored_as: Format | str, peak: bool = False
) -> int:
    """Return the size in bytes of one layer's cache for one sequence after ``context`` tokens.

    The result is 0 for a layer that reads another layer's keys and values. With ``peak``, return
    the maximum over all contexts up to this one. The maximum is larger only for compressed
    attention, and for formats that quantise a block of tokens once it is full.
    """
    form = _format(stored_as)
    if peak:
        # Closing a summary or a block frees the tokens that waited for it, so the cache was larger
        # just before.
        is_compressed = isinstance(attention, CompressedAttention)
        parts = attention.compressors if is_compressed else (form,) if form.block else ()
        ends = {context, *(max(0, part.last_closing(context) - 1) for part in parts)}
        return max(layer_cache_bytes(attention, context=end, stored_as=form) for end in ends)
    state = layer_state_bytes(attention, form)
    if state or isinstance(attention, RecurrentLayer):
        return state if context else 0
    if isinstance(attention, CompressedAttention):
        return _compressed_bytes(attention, context, form)
    if isinstance(attention, ProjectedAttention) and attention.reads_layer is not None:
        return 0
    kept = _kept_tokens(attention.reach, context)
    return entries_bytes(attention, seen=context, kept=kept, stored_as=form)


def layer_state_bytes(attention: AttentionLayer, stored_as: Format | str) -> int:
    """Return the size of a layer's state for one sequence, in bytes.

    It does not depend on the length of the sequence, and is 0 for a layer without a state.

    The sums of a state have 32 bits or more. The inputs that a convolution keeps are never
    quantised.
    """
    if isinstance(attention, RecurrentLayer):
        form = _format(stored_as)
        recent = attention.recent * max(form.bits, form.plain.bits)
        return (attention.sums * max(32, form.bits) + recent) // 8
    if not isinstance(attention, ProjectedAttention) or attention.reads_layer is not None:
        return 0
    wide = max(32, _format(stored_as).bits)
    return attention.config.state_numbers * wide // 8


def model_state_bytes(model: Model, stored_as: Format | str = "bf16") -> int:
    """Return the size in bytes of all layers' states for one sequence of any length."""
    form = _format(stored_as)
    return sum(map_layers(model.layers, lambda layer: layer_state_bytes(layer.attention, form)))


def entries_bytes(
    attention: ProjectedAttention | LatentAttention,
    *,
    seen: int,
    kept: int,
    stored_as: Format | str,
) -> int:
    """Return a layer's cache bytes if it keeps only the ``kept`` newest of ``seen`` tokens."""
    form = _format(stored_as)
    coded, scales, plain = form.divide(seen, kept)
    return (
        coded * token_bytes(attention, form)
        + scales * token_bytes(attention, SCALE)
        + plain * token_bytes(attention, form.plain)
    )


def token_bytes(attention: ProjectedAttention | LatentAttention, stored_as: Format | str) -> int:
    """Return the bytes of one token's entry in a layer's cache.

    The entry counts as quantised. Scales that several tokens share are left out.
    """
    form = _format(stored_as)
    if isinstance(attention, LatentAttention):
        return sum(map(form.row_bytes, attention.stored_widths))
    config = attention.config
    sharing, cached = config.variant.sharing, config.variant.cached
    rows = {one: config.heads(one) * form.row_bytes(config.channels(one)) for one in cached}
    if attention.storage == "input":
        return form.row_bytes(config.d_model)
    if attention.storage == "latent":
        inner = {one: config.latent(one) for one in cached}
        return sum(
            rows[one] if width is None else form.row_bytes(width) for one, width in inner.items()
        )
    if attention.storage == "both":
        roles = [rows[sharing.key], rows[sharing.value]]
        if config.variant.latent is not None:
            roles = [config.num_kv_heads * form.row_bytes(config.size_per_head)] * 2
        return sum(roles) + rows.get(KEY_ROPE, 0)
    if attention.storage == "value and slice":
        sliced = config.heads(sharing.key) * form.row_bytes(config.rotated_channels)
        return sum(rows.values()) + sliced
    return sum(rows.values())


def model_cache_bytes(
    model: Model,
    *,
    context: int,
    stored_as: Format | str = "bf16",
    encoder_tokens: int | None = None,
) -> int:
    """Return the size in bytes of all layers' caches; see :func:`layerwise_cache_bytes`."""
    return sum(
        layerwise_cache_bytes(
            model, context=context, stored_as=stored_as, encoder_tokens=encoder_tokens
        )
    )


def layerwise_cache_bytes(
    model: Model,
    *,
    context: int,
    stored_as: Format | str = "bf16",
    encoder_tokens: int | None = None,
    peak: bool = False,
) -> Sequence[int]:
    """Return the size in bytes of each layer's cache for one sequence.

    Args:
        model: Any model that decodes.
        context: Tokens seen so far; with an encoder, only the decoder's tokens.
        stored_as: The format of the cache.
        encoder_tokens: Number of encoder tokens, if the model does not fix it; by default the
            number of decoder tokens.
        peak: Whether to return the maximum over all contexts up to this one.

    Raises:
        ValueError: for an unknown format or a negative context.
    """
    if context < 0:
        raise ValueError(f"expected a context of at least 0 tokens, got {context}")
    form = _format(stored_as)
    seen = model.count_encoder_tokens(encoder_tokens, context)
    return map_layers(
        model.layers,
        lambda layer: (
            layer_cache_bytes(layer.attention, context=context, stored_as=form, peak=peak)
            + crossing_bytes(layer, encoder_tokens=seen, stored_as=form)
        ),
    )


def growth_bytes(model: Model, *, context: int = 0, stored_as: Format | str = "bf16") -> float:
    """Return the number of bytes by which one more token after ``context`` tokens grows the cache.

    The bytes of a summary of several tokens are divided equally among these tokens.
    """
    form = _format(stored_as)
    return sum(
        map_layers(model.layers, lambda layer: _growth(layer.attention, form, context=context))
    )


def layer_read_bytes(attention: AttentionLayer, *, context: int, stored_as: Format | str) -> int:
    """Return the bytes read from a layer's cache to decode the last of ``context`` tokens.

    Each stored tensor counts once per layer. A layer that reads another layer's entries counts
    them too.
    Cross attention is not included.
    """
    form = _format(stored_as)
    state = layer_state_bytes(attention, form)
    if state or isinstance(attention, RecurrentLayer):
        return state
    keys = visible_keys(attention, context)
    if isinstance(attention, LatentAttention) and attention.indexer is not None:
        # The indexer's keys of all tokens, and the latents of those tokens that it picks.
        _check_uniform(form)
        index = attention.own_indexer
        read = form.row_bytes(attention.kv_rank) + form.row_bytes(attention.rope_dim)
        return keys * read + (context * form.row_bytes(index.width) if index else 0)
    if not isinstance(attention, CompressedAttention):
        return entries_bytes(attention, seen=context, kept=keys, stored_as=form)
    _check_uniform(form)
    indexer = attention.indexer
    indexed = context // indexer.rate * form.row_bytes(indexer.width) if indexer else 0
    return indexed + keys * form.row_bytes(attention.head_dim)


def crossing_bytes(layer: Layer, *, encoder_tokens: int, stored_as: Format | str) -> int:
    """Return the size in bytes of a layer's keys and values that are made from the encoder."""
    if layer.cross is None:
        return 0
    return entries_bytes(layer.cross, seen=encoder_tokens, kept=encoder_tokens, stored_as=stored_as)


def _compressed_bytes(attention: CompressedAttention, context: int, form: Format) -> int:
    _check_uniform(form)
    own = _kept_tokens(attention.window, context) * form.row_bytes(attention.head_dim)
    rows = (row for part in attention.compressors for row in part.stored_rows(context))
    return own + sum(count * form.row_bytes(width) for count, width in rows)


def _growth(attention: AttentionLayer, form: Format, *, context: int) -> float:
    if isinstance(attention, RecurrentLayer) or (
        isinstance(attention, ProjectedAttention) and attention.reads_layer is not None
    ):
        return 0
    added = _kept_tokens(attention.reach, context + 1) - _kept_tokens(attention.reach, context)
    if isinstance(attention, CompressedAttention):
        _check_uniform(form)
        own = added * form.row_bytes(attention.head_dim)
        return own + sum(form.row_bytes(part.width) / part.rate for part in attention.compressors)
    # An average over many tokens, if tokens share scales or are quantised later.
    shared = token_bytes(attention, SCALE) / form.block if form.block else 0
    return added * (token_bytes(attention, form) + shared)


def _check_uniform(form: Format) -> None:
    if not form.is_uniform:
        raise ValueError(
            "expected a format without blocks or a residual, because compressed attention caches "
            f"no entry per token, got {form.name}"
        )


def _kept_tokens(window: int | None, context: int) -> int:
    return context if window is None else min(context, window - 1)


def _format(stored_as: Format | str) -> Format:
    return parse_format(stored_as) if isinstance(stored_as, str) else stored_as
