"""The meaning of a variant and the layers of a model, in words."""

from collections import Counter
from dataclasses import fields

from qkvary.arch.blocks import CompressedAttention, LatentAttention, Layer, RecurrentLayer
from qkvary.arch.labels import format_label
from qkvary.arch.models import Model, count_kinds
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, ROLES
from qkvary.arch.terms import CORES, NORMALISERS
from qkvary.arch.variants import AnyVariant, LayerVariants, Variant
from qkvary.text.names import listed

_FORMS = {
    "residual": "the query is the sum of the layer input and the query projection",
    "residual-gelu": "the query is the sum of the layer input and the GELU of the query projection",
    "map": "the query is the shared tensor, passed through a linear map for each head",
}


def describe(variant: AnyVariant) -> str:
    """Describe a variant, such as "query learned; key and value read one projection"."""
    if isinstance(variant, LayerVariants):
        return _describe_layers(variant)
    parts = _describe_sources(variant)
    if variant.num_kv_heads == 1:
        parts.append("one KV head, read by every query head")
    elif variant.num_kv_heads is not None:
        parts.append(f"{variant.num_kv_heads} KV heads, each read by a group of query heads")
    for source in variant.projections:
        rank = variant.rank(source)
        if rank is not None:
            size = str(rank) if rank.of_width else str(rank.size)
            parts.append(f"projection {source} has rank {size}")
    if variant.query_form != "plain":
        parts.append(_FORMS[variant.query_form])
    if variant.window is not None:
        parts.append(f"attention reaches {variant.window} tokens")
    if variant.stride is not None:
        also = "also " * (variant.window is not None)
        parts.append(f"attention {also}reaches tokens at distances divisible by {variant.stride}")
    parts += [term.write(term.words, variant) for term in variant.terms]
    core = CORES[variant.core]
    if core.words:
        parts.append(core.words)
    if "normaliser" in core.fields:
        parts.append(NORMALISERS[variant.normaliser][0])
    return "; ".join(parts)


def _describe_layers(variant: LayerVariants) -> str:
    parts, last = list[str](), 0
    for one, count in variant.runs:
        first, last = last + 1, last + count
        where = f"layer {first}" if count == 1 else f"layers {first} to {last}"
        parts.append(f"{where}: {describe(one)}")
    return ". ".join(parts)


def name_changes(variant: Variant, baseline: Variant) -> tuple[str, bool]:
    """Name the changes of sharing, heads and ``+``, such as "K=V with shared heads".

    The second value is true if there is a name, and nothing else differs.
    """
    others = {field.name for field in fields(variant)} - {"sharing", "num_kv_heads", "plus"}
    more = any(getattr(variant, name) != getattr(baseline, name) for name in others)
    changes: list[str] = []
    if variant.sharing != baseline.sharing:
        changes = [
            f"an identity {role}"
            for role in ROLES
            if variant.sharing.roles[role] == IDENTITY != baseline.sharing.roles[role]
        ]
        changes += [
            "=".join(role[0].upper() for role in variant.sharing.readers(source))
            for source in variant.projections
            if len(variant.sharing.readers(source)) > 1
        ]
        more = more or not changes
    if variant.num_kv_heads not in {baseline.num_kv_heads, None}:
        changes.append("shared heads" if changes else "sharing heads")
    if variant.plus and not baseline.plus:
        changes.append("the position term +")
    name = " with ".join(filter(None, (*changes[:1], listed(changes[1:]))))
    return name, bool(changes) and not more


def name_cached(variant: Variant) -> str:
    """Name the tensors that decoding stores per token, such as ``K and V``, or the state."""
    if variant.keeps_state:
        return "a state"
    shared = "K" if variant.latent is None else "the latent"
    names = {IDENTITY: "x", "k": shared, KEY_ROPE: "the rotary key"}
    return listed([names.get(source, source.upper()) for source in variant.cached])


def describe_layers(model: Model) -> str:
    """Return the kinds of attention in a model, each with its number of layers, in words."""
    counts = Counter[str]()
    for layer, count in count_kinds(model.layers):
        counts[_describe_layer(layer)] += count
    return "; ".join(f"{count} x {kind}" for kind, count in counts.items())


def _describe_sources(variant: Variant) -> list[str]:
    sources = dict.fromkeys(variant.sharing.roles.values())
    groups = [(source, list[str](variant.sharing.readers(source))) for source in sources]
    alone = [readers[0] for source, readers in groups if len(readers) == 1 and source != IDENTITY]
    parts = [f"{listed(alone)} {'each ' if len(alone) > 1 else ''}learned"] if alone else []
    for source, readers in groups:
        if source == IDENTITY:
            parts.append(f"{listed(readers)} {'are' if len(readers) > 1 else 'is'} the layer input")
        elif len(readers) > 1:
            parts.append(f"{listed(readers)} read one projection")
    return parts


def _describe_layer(layer: Layer) -> str:
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        return f"latent {attention.kv_rank} + {attention.rope_dim}"
    if isinstance(attention, CompressedAttention):
        rate = attention.compressor.rate if attention.compressor else None
        summaries = f", a summary of every {rate}" if rate else ""
        return f"K=V, 1 head of {attention.head_dim}, window {attention.window}{summaries}"
    if isinstance(attention, RecurrentLayer):
        return attention.kind
    config = attention.config
    shared = f", reads layer {attention.reads_layer}" if attention.reads_layer is not None else ""
    crossed = ", cross attention" if layer.cross is not None else ""
    heads = f"{config.num_kv_heads} of {config.num_heads} heads of {config.size_per_head}"
    return f"{format_label(config.variant)} ({heads}{shared}{crossed})"
