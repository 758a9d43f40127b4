"""Llama and the decoders that differ from it in a few choices: each family is one entry of a table.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import Experts, FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import (
    LAYER_TYPES,
    Heads,
    build_decoder,
    build_each,
    read_latent,
    read_rotation,
)
from qkvary.arch.families.fields import Fields
from qkvary.arch.families.recurrent import ReadRecurrent
from qkvary.arch.families.rotary_fields import read_longest
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm
from qkvary.arch.terms import HeadNorm

GLOBAL, LOCAL = LAYER_TYPES
ROTARY_BASE = 10_000.0
"""Base of the rotary frequencies if a configuration omits it."""
CHUNKED = "chunked_attention"

Flag = bool | tuple[str, bool]
"""A fixed value, or the name of the configuration field with the value, and its default."""

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
WIDE = "intermediate_size"
NULLS = (
    *("sliding_window", "num_key_value_heads", "hidden_size_per_layer_input"),
    "attn_logit_softcapping",
)
"""Fields in which null has its own meaning: no window, as many KV heads as query heads, no input
per layer, and no soft cap."""
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Describes the mixture-of-experts layers of a family, and the fields that configure them."""

    width: str = "moe_intermediate_size"
    """The field with the inner width of an expert."""
    shared: Literal["none", "count", "width", "one"] = "none"
    """The number of shared experts of a layer. With ``none`` it is 0. With ``one`` it is 1, and the
    expert is as wide as the others. With ``count`` or ``width``, the configuration states the
    number or the total width."""
    shared_count: int = 0
    """Number of shared experts if the configuration omits it."""
    gated_sharing: bool = False
    """Whether a learned vector of ``d_model`` weights gates the output of the shared experts."""
    bias: bool = False
    """Whether the experts and the router have biases."""
    corrected: bool = False
    """Whether each expert has a learned bias, which is added to its score."""
    norms: int = 0
    """Number of normalisations that only layers with experts have."""


@dataclass(frozen=True, kw_only=True)
class AttentionRecipe:
    """Describes the attention layers of a family, and the fields that configure them."""

    bias: Flag = ("attention_bias", False)
    """Whether queries, keys and values have biases."""
    out_bias: Flag | None = None
    """Whether the output projection has a bias; ``None`` for the value of ``bias``."""
    head_norm: HeadNorm = "none"
    is_normed: Flag = True
    score_cap: str | None = None
    """The field with the soft cap of scores."""
    skips_rotation: bool = False
    """Whether the field ``no_rope_layers`` lists layers without rotary positions."""
    gate: Literal["none", "head", "channel", "query"] = "none"
    """The gate of the attention output: a learned matrix with one output per head (``head``) or per
    channel (``channel``), or a part of the query's projection (``query``)."""
    is_gated: Flag = True
    per_head: int = 0
    """Number of further learned parameters per head of a layer, such as its sink."""
    head_entries: int = 0
    """Number of further learned parameters per head channel of a block."""
    latent: bool = False
    """Whether keys and values are expanded from one latent."""


@dataclass(frozen=True, kw_only=True)
class LayerRecipe:
    """Tells which layers of a family have a window, a state, or full attention."""

    windows: Literal["types", "all", "upper", "none"] = "types"
    """Which layers have a window. ``none``: no layer. Otherwise, ``layer_types`` marks the layers.
    Without ``layer_types``, ``all`` means every layer, and ``upper`` means the layers from
    ``max_window_layers`` on."""
    period: int | None = None
    """Every n-th layer is global if ``layer_types`` is missing."""
    others: str = LOCAL
    """The type of the layers that are not global."""
    needs_types: bool = False
    """Whether a configuration must list its layers."""
    recurrent: Mapping[str, ReadRecurrent] | None = None
    """The functions that read layers with a state, by the name of the layer type."""


@dataclass(frozen=True, kw_only=True)
class BlockRecipe:
    """Describes the dense feed-forward networks and the norms of a family."""

    mlp_bias: Flag = False
    """Whether dense feed-forward networks and shared experts have biases."""
    gated: bool = True
    width: str = "intermediate_size"
    """The field with the inner width of dense layers."""
    norms: int = 2
    """Number of normalisations of a block."""
    post_norms: Flag = False
    """Whether a block has two more normalisations, after its sublayers."""
    parallel: Flag = False
    """Whether attention and feed-forward network share one normalisation."""
    norm_bias: bool = False
    final_norm: bool = True
    """Whether the normalisation after the last block has a gain."""
    inner_norms: bool = False
    """Whether the inputs of the last matrices of attention and feed-forward are normalised."""
    entries: int = 0
    """Number of further learned parameters of a block."""


@dataclass(frozen=True, kw_only=True)
class Recipe(AttentionRecipe, LayerRecipe, BlockRecipe):
    """Describes how a family differs from Llama, so that its configurations can be read."""

    routed: Routed | None = None
    tied: bool | None = False
    """The default of ``tie_word_embeddings``; ``None`` if the output head is never tied."""
    head_bias: Flag = False
    rotary_share: float = 1.0
    """The share of a head's channels that is rotated if the configuration does not state it."""
    rotary_base: float = ROTARY_BASE
    local_base: tuple[str, float] | None = None
    """The field and the default of a separate rotary base for layers with a window."""
    required: Mapping[str, tuple[object, ...]] = field(
        default_factory=dict[str, tuple[object, ...]]
    )
    """The values of fields for which costs can be counted; other values are refused."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """Defaults of fields that a file omits or sets to null; fields in ``NULLS`` may be null."""
    ignored: tuple[str, ...] = ()
    """Fields of other families. If a file of this family has them, transformers ignores them."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties that may differ between the layers of one model."""

    mixing: str
    """The type of the layer, as in ``layer_types``."""
    window: int | None
    """Number of tokens that a query sees; ``None`` for all."""
    sparse: bool
    shares_indexer: bool = False
    """Whether the layer reuses the tokens picked by the indexer of an earlier layer."""
    rotates: bool = True
    """Whether the layer has rotary positions."""


def read(recipe: Recipe, fields: Fields, name: str) -> Model:
    """Return the model of a configuration of this family."""
    fields = complete(recipe, fields)
    d_model = fields.size("hidden_size", "n_embd", "d_model")
    fields.allow(recipe.required)
    heads = fields.items("num_attention_heads_per_layer")
    if heads is not None and set(heads) != {fields.size("num_attention_heads")}:
        raise fields.refuse("num_attention_heads_per_layer", "num_attention_heads in every entry")
    norm = Norm(d_model, bias=recipe.norm_bias)
    norms = 1 if read_flag(fields, recipe.parallel) else recipe.norms
    norms += 2 * read_flag(fields, recipe.post_norms)
    kinds = list_kinds(recipe, fields)

    def build(kind: Kind) -> Layer:
        network = read_experts(recipe, fields) if kind.sparse else read_dense(recipe, fields)
        more = recipe.routed.norms if recipe.routed is not None and kind.sparse else 0
        inner: tuple[Norm, ...] = ()
        if recipe.inner_norms and isinstance(network, FeedForward):
            inner = (Norm(network.d_ff),)
        mixer = (recipe.recurrent or {}).get(kind.mixing)
        if mixer is not None:
            attention = mixer(fields)
        elif recipe.latent:
            attention = read_latent(fields, shares_indexer=kind.shares_indexer)
        else:
            attention = _attention(recipe, fields, kind)
        return Layer(
            attention=attention,
            feed_forward=(network,),
            norms=(*(norm,) * (norms + more), *inner),
            others=() if mixer is not None else _gates(recipe, fields),
            entries=recipe.entries,
        )

    return build_decoder(
        fields,
        name,
        build_each(kinds, build),
        tied=recipe.tied,
        head_bias=read_flag(fields, recipe.head_bias),
        norms=(norm,) if recipe.final_norm else (),
        max_tokens=find_longest(recipe, fields, kinds),
    )


def complete(recipe: Recipe, fields: Fields) -> Fields:
    """Return the fields that the family reads, with defaults for fields that are absent."""
    given = fields.content.items()
    content = {**recipe.defaults, **{n: one for n, one in given if one is not None or n in NULLS}}
    read_here = {name: one for name, one in content.items() if name not in recipe.ignored}
    return Fields(read_here, fields.family)


def list_kinds(recipe: Recipe, fields: Fields) -> list[Kind]:
    """Return the kind of each layer."""
    layers = fields.layers("num_hidden_layers", "n_layer", "num_layers")
    return [
        Kind(mixing, _window(fields, mixing), sparse, shared, rotates)
        for mixing, sparse, shared, rotates in zip(
            _types(recipe, fields, layers),
            _sparse(recipe, fields, layers),
            _shares_indexer(fields, layers),
            _rotates(recipe, fields, layers),
            strict=True,
        )
    ]


def _rotates(recipe: Recipe, fields: Fields, layers: int) -> list[bool]:
    if not recipe.skips_rotation:
        return [True] * layers
    listed = fields.items("no_rope_layers")
    if listed is None:
        step = fields.size("no_rope_layer_interval", default=4)
        return [(index + 1) % step != 0 for index in range(layers)]
    if len(listed) != layers or not set(listed) <= {0, 1}:
        raise fields.refuse("no_rope_layers", f"{layers} zeros and ones")
    return [bool(one) for one in listed]


def _shares_indexer(fields: Fields, layers: int) -> list[bool]:
    types = fields.words("indexer_types", choices=("full", "shared"), length=layers)
    if types is not None:
        return [kind == "shared" for kind in types]
    step = fields.size("index_topk_freq", default=1)
    first = fields.count("index_skip_topk_offset", default=2)
    return [max(index - first + 1, 0) % step != 0 for index in range(layers)]


def read_flag(fields: Fields, flag: Flag) -> bool:
    """Return a flag: the family's fixed value, or the value of the configuration field for it."""
    return flag if isinstance(flag, bool) else fields.flag(flag[0], default=flag[1])


def _types(recipe: Recipe, fields: Fields, layers: int) -> tuple[str, ...]:
    """Return the kind of each layer, from the list of layer types."""
    mixers = ("attention", *recipe.recurrent) if recipe.recurrent else ()
    known = tuple(dict.fromkeys((GLOBAL, LOCAL, recipe.others, *mixers)))
    if recipe.windows == "none":
        return (GLOBAL,) * layers
    names, others = ("layer_types", "layers_block_type"), recipe.others
    types = fields.words(*names, choices=known, length=layers)
    if types is not None:
        return tuple(GLOBAL if kind == "attention" else kind for kind in types)
    if recipe.needs_types:
        raise fields.missing(names)
    if recipe.windows == "all":
        return (LOCAL,) * layers
    if recipe.windows == "upper":
        full = min(layers, fields.count("max_window_layers", default=28))
        return (GLOBAL,) * full + (LOCAL,) * (layers - full)
    listed = fields.numbers("attn_layer_indices", "full_attn_idxs")
    if listed is not None:
        return tuple(GLOBAL if index in listed else others for index in range(layers))
    if fields.has("attn_layer_period"):
        period, first = fields.size("attn_layer_period"), fields.count("attn_layer_offset")
        return tuple(GLOBAL if index % period == first else others for index in range(layers))
    period = recipe.period
    if period is not None:
        names = ("full_attention_interval", "sliding_window_pattern", "layer_group_size")
        period = fields.size(*names, default=period)
    return tuple(
        others if period is not None and (index + 1) % period else GLOBAL for index in range(layers)
    )


def _window(fields: Fields, mixing: str) -> int | None:
    if mixing == LOCAL:
        window = fields.optional_size("sliding_window")
        if not fields.flag("use_sliding_window", default=True):
            window = None
        if window is None and fields.has("layer_types"):
            raise fields.refuse("layer_types", "full_attention everywhere without a sliding window")
        return window
    if mixing == CHUNKED:
        # A chunk of tokens is cached like a window of the same length.
        return fields.size("attention_chunk_size")
    return None


def _sparse(recipe: Recipe, fields: Fields, layers: int) -> list[bool]:
    """Return one flag per layer, which is true if the layer has experts."""
    if recipe.routed is None or (fields.has(*COUNTS) and fields.count(*COUNTS) == 0):
        return [False] * layers
    types = fields.words("mlp_layer_types", choices=("dense", "sparse"), length=layers)
    if types is not None:
        return [kind == "sparse" for kind in types]
    if fields.has("expert_layer_period"):
        period, offset = fields.size("expert_layer_period"), fields.count("expert_layer_offset")
        several = fields.count(*COUNTS) > 1
        return [several and index % period == offset for index in range(layers)]
    listed = fields.numbers("moe_layers")
    if listed is not None:
        return [index in listed for index in range(layers)]
    first = fields.count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    step = fields.size(
        "decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step", default=1
    )
    last = fields.count("moe_layer_end_index", default=layers - 1)
    dense = fields.numbers("mlp_only_layers") or frozenset()
    if fields.has("decoder_sparse_step", "interleave_moe_layer_step"):
        return [(index + 1) % step == 0 and index not in dense for index in range(layers)]
    return [
        first <= index <= last and (index - first) % step == 0 and index not in dense
        for index in range(layers)
    ]


def read_dense(recipe: Recipe, fields: Fields) -> FeedForward:
    """Return the dense feed-forward network."""
    d_ff = fields.size(recipe.width)
    if fields.flag("block_auto_adjust_ff_dim", default=False):
        scale = fields.number("block_ffn_dim_multiplier", default=1.0)
        multiple = fields.size("block_multiple_of", default=256)
        d_ff = -(-int(scale * (2 * d_ff // 3)) // multiple) * multiple
    return FeedForward(
        fields.size("hidden_size", "n_embd", "d_model"),
        d_ff,
        gated=recipe.gated,
        bias=read_flag(fields, recipe.mlp_bias),
    )


def read_experts(recipe: Recipe, fields: Fields) -> Experts:
    """Return the experts of a layer; the family must have experts."""
    routed = recipe.routed or Routed()
    d_model, count = fields.size("hidden_size", "d_model"), fields.size(*COUNTS)
    width = fields.size(routed.width)
    shared = _shared_width(routed, fields, width)
    return Experts(
        expert=FeedForward(d_model, width, gated=True, bias=routed.bias),
        count=count,
        active=fields.size(*ACTIVE),
        shared=FeedForward(d_model, shared, gated=True, bias=read_flag(fields, recipe.mlp_bias))
        if shared
        else None,
        router=Linear(d_model, count, bias=routed.bias),
        entries=(count if routed.corrected else 0)
        + (d_model if routed.gated_sharing and shared else 0),
    )


def _shared_width(routed: Routed, fields: Fields, width: int) -> int:
    if routed.shared == "one":
        return width
    if routed.shared == "width":
        return fields.count(*SHARED_WIDTHS)
    if routed.shared == "count":
        return width * fields.count(*SHARED, default=routed.shared_count)
    return 0


def _heads(fields: Fields) -> Heads:
    count = fields.size("num_attention_heads", "n_head")
    return Heads(
        d_model=fields.size("hidden_size", "n_embd", "d_model"),
        count=count,
        kv_count=fields.size("num_key_value_heads", default=count),
        dim=fields.optional_size("head_dim"),
    )


def rotary_fields(recipe: Recipe, fields: Fields, mixing: str) -> Fields:
    """Return the rotation fields that apply to one kind of layer."""
    section = fields.section("rope_parameters")
    own = None if section is None else section.section(mixing)
    name, base = recipe.local_base or ("rope_theta", recipe.rotary_base)
    is_local = recipe.local_base is not None and mixing == LOCAL
    if own is None and not is_local:
        return fields
    found: dict[str, object] = {} if own is None else dict(own.content)
    if recipe.local_base is not None and not is_local:
        # Only layers with full attention have scaled positions.
        found |= fields.nested("rope_scaling").content
    theta = fields.number(name if is_local else "rope_theta", default=base)
    return Fields(
        {
            "rope_parameters": {"rope_theta": theta, **found},
            "max_position_embeddings": fields.content.get("max_position_embeddings"),
        },
        fields.family,
    )


def find_longest(recipe: Recipe, fields: Fields, kinds: Sequence[Kind]) -> int | None:
    """Return the longest context that a configuration allows, or ``None`` if it states none."""
    each = {kind.mixing: rotary_fields(recipe, fields, kind.mixing) for kind in kinds}
    return max(filter(None, map(read_longest, each.values())), default=None)


def read_head_config(recipe: Recipe, fields: Fields, kind: Kind) -> AttentionConfig:
    """Return the configuration of an attention layer, from sizes to rotation, norms and biases."""
    bias, cap = read_flag(fields, recipe.bias), recipe.score_cap
    is_normed = recipe.head_norm != "none" and read_flag(fields, recipe.is_normed)
    config = _heads(fields).attend(
        window=kind.window,
        positions="rotary" if kind.rotates else "none",
        rotation=read_rotation(
            rotary_fields(recipe, fields, kind.mixing),
            fraction=recipe.rotary_share,
            base=recipe.rotary_base,
        ),
        bias=bias,
        out_bias=bias if recipe.out_bias is None else read_flag(fields, recipe.out_bias),
    )
    variant = replace(
        config.variant,
        head_norm=recipe.head_norm if is_normed else "none",
        soft_cap=None if cap is None or not fields.has(cap) else fields.number(cap),
    )
    return replace(config, variant=variant)


def _attention(recipe: Recipe, fields: Fields, kind: Kind) -> ProjectedAttention:
    config = read_head_config(recipe, fields, kind)
    norms = (Norm(config.d_model),) if recipe.inner_norms else ()
    entries = config.num_heads * recipe.per_head + config.size_per_head * recipe.head_entries
    return ProjectedAttention(config=config, norms=norms, entries=entries)


def _gates(recipe: Recipe, fields: Fields) -> tuple[Linear, ...]:
    if recipe.gate == "none" or not read_flag(fields, recipe.is_gated):
        return ()
    heads = _heads(fields)
    size = heads.dim or heads.d_model // heads.count
    if recipe.latent:
        size = fields.size("v_head_dim")
    outputs = heads.count * (1 if recipe.gate == "head" else size)
    bias = recipe.gate == "query" and read_flag(fields, recipe.bias)
    return (Linear(heads.d_model, outputs, bias=bias),)
