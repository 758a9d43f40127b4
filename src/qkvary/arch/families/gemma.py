"""Gemma 4 and Gemma 3n, whose last layers read an earlier layer's keys and values.

Gemma 4 has heads of two widths, windows between global layers, and K=V in global layers. There, the
value is taken before the key is normalised with a gain and rotated, so that both follow from one
tensor: ``Q-K=V`` with ``value_rope = "none"``. Engines store key and value. Gemma 3n has several
residual streams and inputs per layer.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.blocks import Experts, FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import LAYER_TYPES, Heads, build_decoder, build_each
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.recipes import Kind, Recipe, complete, read_head_config
from qkvary.arch.models import Model, map_layers
from qkvary.arch.parts import Linear, Norm, Table
from qkvary.arch.sharing import share

GLOBAL, LOCAL = LAYER_TYPES

GEMMA4_VOCABULARY = 262_144
"""Vocabulary if a configuration omits it, also of the per-layer inputs."""
BASES = {GLOBAL: 1_000_000.0, LOCAL: 10_000.0}
"""Bases of the rotary frequencies, by default."""

_EQUAL_NOTE = (
    "keys and values of global layers are computed from one tensor; both are counted, because "
    "engines store both"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """The properties in which the attention layers of a stack differ."""

    heads: Heads
    window: int | None
    """Number of tokens that a query sees; ``None`` for a global layer."""
    rotation: PositionConfig
    equal: bool = False
    """Whether keys and values read one projection."""
    reads_layer: int | None = None
    """The layer whose keys and values are read; ``None`` if the layer has its own."""


def _read_gemma4(fields: Fields, name: str) -> Model:
    width = fields.count("hidden_size_per_layer_input", default=256)
    if fields.mentions("hidden_size_per_layer_input") and not fields.has(
        "hidden_size_per_layer_input"
    ):
        width = 0
    experts = _read_experts(fields) if fields.flag("enable_moe_block", default=False) else None
    kinds = _read_gemma4_kinds(fields, window=512)
    model = _build(fields, name, kinds, experts)
    return _add_inputs(fields, model, width) if width else model


def _read_gemma4_unified(fields: Fields, name: str) -> Model:
    return _build(fields, name, _read_gemma4_kinds(fields, window=1024))


def _read_types(fields: Fields, *, period: int) -> tuple[str, ...]:
    """Return the kind of each layer; by default, one layer in every ``period`` layers is global."""
    layers = fields.layers("num_hidden_layers")
    types = fields.words("layer_types", choices=LAYER_TYPES, length=layers)
    if types is not None:
        return types
    return tuple(LOCAL if (index + 1) % period else GLOBAL for index in range(layers))


def _read_gemma4_kinds(fields: Fields, *, window: int) -> tuple[_Kind, ...]:
    if fields.text("use_bidirectional_attention", default="vision") != "vision":
        raise fields.refuse("use_bidirectional_attention", "null or vision (text stays causal)")
    # The last layer is always global, as in transformers.
    types = (*_read_types(fields, period=6)[:-1], GLOBAL)
    window = fields.size("sliding_window", default=window)
    equal = fields.flag("attention_k_eq_v", default=False)
    heads = _read_heads_of_layers(fields, types, equal=equal)
    rotations = {kind: _read_gemma4_rotation(fields, kind) for kind in LAYER_TYPES}
    sources = _find_sources(fields, types)
    kinds = tuple(
        _Kind(
            heads=heads[index],
            window=window if kind == LOCAL else None,
            rotation=rotations[kind],
            equal=equal and kind == GLOBAL,
            reads_layer=source,
        )
        for index, (kind, source) in enumerate(zip(types, sources, strict=True))
    )
    for index, kind in enumerate(kinds):
        if kind.reads_layer is not None and kind.heads != kinds[kind.reads_layer].heads:
            raise fields.refuse(
                "num_kv_shared_layers",
                f"layer {index} to have the same heads as layer {kind.reads_layer}, "
                "whose cache it reads,",
            )
    return kinds


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


def _read_heads_of_layers(
    fields: Fields, types: Sequence[str], *, equal: bool
) -> tuple[Heads, ...]:
    """Return the heads of each layer, from ``per_layer_config`` or from the kind of layer."""
    usual = Heads(
        d_model=fields.size("hidden_size"),
        count=fields.size("num_attention_heads", default=8),
        kv_count=fields.size("num_key_value_heads", default=4),
        dim=fields.size("head_dim", default=256),
    )
    overrides = fields.section("per_layer_config")
    if overrides is not None:
        return _override_heads(fields, overrides, usual, len(types))
    kv_count = fields.optional_size("num_global_key_value_heads") if equal else None
    wide = dataclasses.replace(
        usual,
        dim=fields.size("global_head_dim", default=512),
        kv_count=usual.kv_count if kv_count is None else kv_count,
    )
    return tuple(wide if kind == GLOBAL else usual for kind in types)


def _override_heads(
    fields: Fields, overrides: Fields, usual: Heads, layers: int
) -> tuple[Heads, ...]:
    heads, name, known = [usual] * layers, "per_layer_config", ("head_dim", "num_key_value_heads")
    for key, value in overrides.content.items():
        # Keys are integers in Python, but strings in JSON.
        index = str(key)
        if not index.isdecimal() or len(index) > 9 or int(index) >= layers:
            raise fields.refuse(name, f"numbers of layers below {layers}")
        layer = Fields({name: value}, fields.family).section(name)
        if layer is None:
            continue
        if set(layer.content) - set(known):
            raise fields.refuse(name, f"nothing but {' and '.join(known)}")
        heads[int(index)] = dataclasses.replace(
            usual,
            dim=layer.size(known[0], default=usual.dim),
            kv_count=layer.size(known[1], default=usual.kv_count),
        )
    return tuple(heads)


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
        expert=FeedForward(d_model=d_model, d_ff=inner, gated=True),
        count=count,
        active=fields.size("top_k_experts"),
        router=Linear(inputs=d_model, outputs=count),
        # A gain on the router's input, and one for each expert's output.
        entries=d_model + count,
    )


def _add_inputs(fields: Fields, model: Model, width: int) -> Model:
    """Return the model with a second embedding of each token; each layer reads its own part."""
    rows = fields.size("vocab_size_per_layer_input", default=GEMMA4_VOCABULARY)
    d_model, total = model.d_model, len(model.layers) * width
    into, out = Linear(inputs=d_model, outputs=width), Linear(inputs=width, outputs=d_model)
    layers = map_layers(
        model.layers,
        lambda layer: dataclasses.replace(
            layer, others=(into, out), norms=(*layer.norms, Norm(width=d_model))
        ),
    )
    return dataclasses.replace(
        model,
        layers=tuple(layers),
        tables=(*model.tables, Table(rows=rows, width=total)),
        norms=(*model.norms, Norm(width=width)),
        others=(Linear(inputs=d_model, outputs=total),),
    )


def _attend(fields: Fields, kind: _Kind) -> AttentionConfig:
    bias = fields.flag("attention_bias", default=False)
    config = kind.heads.attend(
        window=kind.window, positions="rotary", rotation=kind.rotation, bias=bias, out_bias=bias
    )
    if not kind.equal:
        return config
    variant = dataclasses.replace(config.variant, sharing=share("q", "k", "k"))
    return dataclasses.replace(config, variant=variant)


def _build(
    fields: Fields, name: str, kinds: Sequence[_Kind], experts: Experts | None = None
) -> Model:
    """Return the model with these layers; experts are added to each feed-forward network."""
    d_model, d_ff = fields.size("hidden_size"), fields.size("intermediate_size")
    widened = fields.flag("use_double_wide_mlp", default=False)

    def build_layer(kind: _Kind) -> Layer:
        config, reads = _attend(fields, kind), kind.reads_layer is not None
        dense = FeedForward(
            d_model=d_model, d_ff=2 * d_ff if widened and reads else d_ff, gated=True
        )
        own_norms = 1 if reads else 2
        return Layer(
            attention=ProjectedAttention(
                config=config,
                norms=(Norm(width=config.size_per_head),) * own_norms,
                reads_layer=kind.reads_layer,
                storage="both" if kind.equal else "needed",
            ),
            feed_forward=(dense,) if experts is None else (dense, experts),
            norms=(Norm(width=d_model),) * (4 if experts is None else 7),
        )

    tokens = fields.size("vocab_size", default=GEMMA4_VOCABULARY)
    notes = (_EQUAL_NOTE,) if any(kind.equal for kind in kinds) else ()
    layers = build_each(kinds, build_layer)
    return build_decoder(fields.replace(vocab_size=tokens), name, layers, tied=True, notes=notes)


_GEMMA3N = Recipe(
    rotary_base=1_000_000.0,
    local_base=("rope_local_base_freq", 10_000.0),
    defaults={"head_dim": 256},
)


def _read_gemma3n(fields: Fields, name: str) -> Model:
    fields = complete(_GEMMA3N, fields)
    d_model, layers = fields.size("hidden_size"), fields.layers("num_hidden_layers")
    types = _read_types(fields, period=5)
    shared = fields.count("num_kv_shared_layers", default=15)
    sources = _find_sources(fields.replace(num_kv_shared_layers=shared), types)
    window = fields.size("sliding_window", default=512)
    widths = _read_widths(fields, layers)
    width = fields.size("hidden_size_per_layer_input", default=256)
    others, norms = _read_streams(fields, d_model, width)
    streams = fields.size("altup_num_inputs", default=4)

    def build(one: tuple[str, int | None, int]) -> Layer:
        mixing, source, d_ff = one
        kind = Kind(mixing, window if mixing == LOCAL else None, sparse=False)
        config = read_head_config(_GEMMA3N, fields, kind)
        own_norms = 2 if source is None else 1
        return Layer(
            attention=ProjectedAttention(
                config=config,
                norms=(Norm(width=config.size_per_head),) * own_norms,
                reads_layer=source,
            ),
            feed_forward=(FeedForward(d_model=d_model, d_ff=d_ff, gated=True),),
            norms=(*(Norm(width=d_model),) * 4, *norms),
            others=others,
            entries=d_model,
            # A matrix mixes the streams of each token; the router of the streams runs twice.
            products=streams**2 * d_model + streams * d_model,
        )

    vocabulary = fields.size("vocab_size")
    rows = fields.size("vocab_size_per_layer_input", default=262_144)
    stream = Linear(inputs=d_model, outputs=d_model)
    return build_decoder(
        fields,
        name,
        build_each([*zip(types, sources, widths, strict=True)], build),
        tied=True,
        tables=(
            Table(rows=vocabulary, width=d_model),
            Table(rows=rows, width=layers * width),
        ),
        norms=(Norm(width=d_model), Norm(width=width)),
        others=(
            Linear(inputs=d_model, outputs=layers * width),
            *(stream,) * (2 * (streams - 1)),
        ),
    )


def _read_widths(fields: Fields, layers: int) -> list[int]:
    """Return the inner width of each layer, from a list or one number for all."""
    given = fields.content.get("intermediate_size")
    listed = given if isinstance(given, list | tuple) else [given] * layers
    if len(listed) != layers:
        raise fields.refuse("intermediate_size", f"a size, or {layers} sizes")
    name = "intermediate_size"
    return [Fields({name: one}, fields.family).size(name) for one in listed]


def _read_streams(
    fields: Fields, d_model: int, width: int
) -> tuple[tuple[Linear, ...], tuple[Norm, ...]]:
    """Return Gemma 3n's extra parts: streams, a low-rank connection, the per-layer input."""
    streams = fields.size("altup_num_inputs", default=4)
    rank = fields.size("laurel_rank", default=64)
    others = (
        Linear(inputs=streams, outputs=streams),
        Linear(inputs=streams, outputs=streams**2),
        Linear(inputs=d_model, outputs=streams),
        Linear(inputs=d_model, outputs=rank),
        Linear(inputs=rank, outputs=d_model),
        Linear(inputs=d_model, outputs=width),
        Linear(inputs=width, outputs=d_model),
    )
    return others, (Norm(width=d_model),) * 3


READERS: Mapping[str, Reader] = {
    "gemma4_text": _read_gemma4,
    "gemma4": _read_gemma4,
    "gemma4_unified_text": _read_gemma4_unified,
    "gemma4_unified": _read_gemma4_unified,
    "gemma3n_text": _read_gemma3n,
}
