"""Gemma 4 and Gemma 3n, whose last layers read an earlier layer's keys and values.

Gemma 4 has heads of two widths, and ``Q-K=V`` with ``value_rope = "none"`` in global layers. Gemma
3n has several residual streams.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from qkvary.arch.attention import PositionConfig
from qkvary.arch.blocks import Experts, FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import LAYER_TYPES, Heads, build_decoder, build_each
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.recipes import Kind, Recipe, complete, read_head_config
from qkvary.arch.models import Model, map_layers
from qkvary.arch.parts import Linear, Norm, Table
from qkvary.arch.sharing import share

GLOBAL, LOCAL = LAYER_TYPES

BASES = {GLOBAL: 1_000_000.0, LOCAL: 10_000.0}
"""The default base of the rotary frequencies, by type of layer."""

_EQUAL_NOTE = (
    "keys and values of global layers are computed from one tensor; both are counted, because "
    "engines store both"
)


_GEMMA4 = Recipe(
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
    }
)
_GEMMA4_UNIFIED = Recipe(
    defaults={**_GEMMA4.defaults, "sliding_window": 1024},
    ignored=("hidden_size_per_layer_input", "enable_moe_block"),
)


def _read_gemma4(fields: Fields, name: str, *, recipe: Recipe) -> Model:
    fields = complete(recipe, fields)
    listed = fields.section("per_layer_config")
    if listed is not None:
        # Keys are integers in Python, but strings in JSON.
        named = {str(index): one for index, one in listed.content.items()}
        fields = fields.replace(per_layer_config=named)
    experts = _read_experts(fields) if fields.flag("enable_moe_block", default=False) else None
    model = _build(fields, name, _read_attentions(fields), experts)
    width = fields.count("hidden_size_per_layer_input")
    return _add_inputs(fields, model, width) if width else model


def _read_types(fields: Fields, *, period: int) -> tuple[str, ...]:
    """Return the kind of each layer; by default, one layer in every ``period`` layers is global."""
    layers = fields.layers("num_hidden_layers")
    types = fields.words("layer_types", choices=LAYER_TYPES, length=layers)
    if types is not None:
        return types
    return tuple(LOCAL if (index + 1) % period else GLOBAL for index in range(layers))


def _read_attentions(fields: Fields) -> tuple[ProjectedAttention, ...]:
    """Return the attention of each layer."""
    fields.allow({"use_bidirectional_attention": ("vision",)})
    # The last layer is always global, as in transformers.
    types = (*_read_types(fields, period=6)[:-1], GLOBAL)
    heads = [_read_heads(fields, index, kind) for index, kind in enumerate(types)]
    sources = _find_sources(fields, types)
    for index, source in enumerate(sources):
        if source is not None and heads[index] != heads[source]:
            raise fields.refuse(
                "num_kv_shared_layers",
                f"layer {index} to have the same heads as layer {source}, whose cache it reads,",
            )
    kinds = [*zip(types, heads, sources, strict=True)]
    return build_each(kinds, lambda kind: _read_attention(fields, *kind))


def _read_attention(
    fields: Fields, kind: str, heads: Heads, source: int | None
) -> ProjectedAttention:
    equal = kind == GLOBAL and fields.flag("attention_k_eq_v", default=False)
    bias = fields.flag("attention_bias", default=False)
    config = heads.attend(
        window=fields.size("sliding_window") if kind == LOCAL else None,
        positions="rotary",
        rotation=_read_gemma4_rotation(fields, kind),
        bias=bias,
        out_bias=bias,
    )
    if equal:
        config = replace(config, variant=replace(config.variant, sharing=share("q", "k", "k")))
    norm = Norm(config.size_per_head)
    return ProjectedAttention(
        config=config,
        norms=(norm, norm) if source is None else (norm,),
        reads_layer=source,
        storage="both" if equal else "needed",
    )


def _read_gemma4_rotation(fields: Fields, kind: str) -> PositionConfig:
    nested = fields.nested("rope_parameters").nested(kind)
    given = fields.has("rope_parameters")
    proportional = nested.has("partial_rotary_factor") or (kind == GLOBAL and not given)
    usual = "proportional" if proportional else "default"
    fraction = 1.0
    if nested.text("rope_type", default=usual) == "proportional":
        fraction = nested.number("partial_rotary_factor", default=1.0 if given else 0.25)
    return PositionConfig(
        rotary_fraction=fraction,
        rotary_base=nested.number("rope_theta", default=BASES[kind]),
        value_rope="none",
    )


def _read_heads(fields: Fields, index: int, kind: str) -> Heads:
    """Return the heads of a layer, from ``per_layer_config`` or from the kind of layer."""
    dim, kv_count = fields.size("head_dim"), fields.size("num_key_value_heads")
    listed = fields.section("per_layer_config")
    if listed is not None:
        own = listed.nested(str(index))
        if not {*own.content} <= {"head_dim", "num_key_value_heads"}:
            raise fields.refuse("per_layer_config", "nothing but head_dim and num_key_value_heads")
        dim = own.size("head_dim", default=dim)
        kv_count = own.size("num_key_value_heads", default=kv_count)
    elif kind == GLOBAL:
        dim = fields.size("global_head_dim")
        if fields.flag("attention_k_eq_v", default=False):
            kv_count = fields.size("num_global_key_value_heads", default=kv_count)
    return Heads(
        d_model=fields.size("hidden_size"),
        count=fields.size("num_attention_heads"),
        kv_count=kv_count,
        dim=dim,
    )


def _find_sources(fields: Fields, types: Sequence[str]) -> tuple[int | None, ...]:
    """Return, for each layer, the earlier layer whose cache it reads, or ``None``."""
    own = len(types) - fields.count("num_kv_shared_layers")
    latest = {kind: index for index, kind in enumerate(types[: max(0, own)])}
    if set(latest) != set(types):
        raise fields.refuse(
            "num_kv_shared_layers", "a layer of each type with its own keys and values"
        )
    return tuple(None if index < own else latest[kind] for index, kind in enumerate(types))


def _read_experts(fields: Fields) -> Experts:
    d_model, count = fields.size("hidden_size"), fields.size("num_experts")
    inner = fields.size("moe_intermediate_size")
    return Experts(
        expert=FeedForward(d_model, inner, gated=True),
        count=count,
        active=fields.size("top_k_experts"),
        router=Linear(d_model, count),
        # A gain on the router's input, and one for each expert's output.
        entries=d_model + count,
    )


def _add_inputs(fields: Fields, model: Model, width: int) -> Model:
    """Return the model with a second token embedding; each layer reads its own part of a row."""
    rows = fields.size("vocab_size_per_layer_input")
    d_model, total = model.d_model, len(model.layers) * width
    into, out = Linear(d_model, width), Linear(width, d_model)
    layers = map_layers(
        model.layers,
        lambda layer: replace(layer, others=(into, out), norms=(*layer.norms, Norm(d_model))),
    )
    return replace(
        model,
        layers=tuple(layers),
        tables=(*model.tables, Table(rows, total)),
        norms=(*model.norms, Norm(width)),
        others=(Linear(d_model, total),),
    )


def _build(
    fields: Fields, name: str, attentions: Sequence[ProjectedAttention], experts: Experts | None
) -> Model:
    """Return the model with these layers; experts are added to each feed-forward network."""
    d_model, d_ff = fields.size("hidden_size"), fields.size("intermediate_size")
    widened = fields.flag("use_double_wide_mlp", default=False)

    def build_layer(attention: ProjectedAttention) -> Layer:
        wide = widened and attention.reads_layer is not None
        dense = FeedForward(d_model, 2 * d_ff if wide else d_ff, gated=True)
        return Layer(
            attention=attention,
            feed_forward=(dense,) if experts is None else (dense, experts),
            norms=(Norm(d_model),) * (4 if experts is None else 7),
        )

    notes = (_EQUAL_NOTE,) if any(one.storage == "both" for one in attentions) else ()
    layers = build_each(attentions, build_layer)
    return build_decoder(fields, name, layers, tied=True, notes=notes)


_GEMMA3N = Recipe(
    rotary_base=1_000_000.0,
    local_base=("rope_local_base_freq", 10_000.0),
    defaults={
        "head_dim": 256,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
    },
)


def _read_gemma3n(fields: Fields, name: str) -> Model:
    fields = complete(_GEMMA3N, fields)
    d_model, layers = fields.size("hidden_size"), fields.layers("num_hidden_layers")
    types = _read_types(fields, period=5)
    sources = _find_sources(fields, types)
    window, streams = fields.size("sliding_window"), fields.size("altup_num_inputs")
    width, rank = fields.size("hidden_size_per_layer_input"), fields.size("laurel_rank")
    # The streams, a low-rank connection, and the per-layer input.
    others = (
        Linear(streams, streams),
        Linear(streams, streams**2),
        Linear(d_model, streams),
        Linear(d_model, rank),
        Linear(rank, d_model),
        Linear(d_model, width),
        Linear(width, d_model),
    )

    def build(one: tuple[str, int | None, int]) -> Layer:
        mixing, source, d_ff = one
        kind = Kind(mixing, window if mixing == LOCAL else None, sparse=False)
        config = read_head_config(_GEMMA3N, fields, kind)
        own_norms = 2 if source is None else 1
        return Layer(
            attention=ProjectedAttention(
                config=config,
                norms=(Norm(config.size_per_head),) * own_norms,
                reads_layer=source,
            ),
            feed_forward=(FeedForward(d_model, d_ff, gated=True),),
            norms=(Norm(d_model),) * 7,
            others=others,
            entries=d_model,
            # A matrix mixes the streams of each token; the router of the streams runs twice.
            products=streams**2 * d_model + streams * d_model,
        )

    vocabulary = fields.size("vocab_size")
    rows = fields.size("vocab_size_per_layer_input")
    stream = Linear(d_model, d_model)
    return build_decoder(
        fields,
        name,
        build_each([*zip(types, sources, _read_widths(fields, layers), strict=True)], build),
        tied=True,
        tables=(Table(vocabulary, d_model), Table(rows, layers * width)),
        norms=(Norm(d_model), Norm(width)),
        others=(Linear(d_model, layers * width), *(stream,) * (2 * (streams - 1))),
    )


def _read_widths(fields: Fields, layers: int) -> list[int]:
    """Return the inner width of each layer, from a list or from one number for all layers."""
    name = "intermediate_size"
    given = fields.content.get(name)
    listed = given if isinstance(given, list | tuple) else [given] * layers
    if len(listed) != layers:
        raise fields.refuse(name, f"a size, or {layers} sizes")
    return [Fields({name: one}, fields.family).size(name) for one in listed]


READERS: Mapping[str, Reader] = {
    **dict.fromkeys(("gemma4", "gemma4_text"), partial(_read_gemma4, recipe=_GEMMA4)),
    **dict.fromkeys(
        ("gemma4_unified", "gemma4_unified_text"), partial(_read_gemma4, recipe=_GEMMA4_UNIFIED)
    ),
    "gemma3n_text": _read_gemma3n,
}
