"""Llama and the decoders that differ from it in a few choices: each family is one entry of a table.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from qkvary.arch.attention import PositionConfig
from qkvary.arch.blocks import Experts, FeedForward, Layer, ProjectedAttention
from qkvary.arch.families import recurrent
from qkvary.arch.families.attention_fields import LAYER_TYPES, Heads, build_each, read_rotation
from qkvary.arch.families.deepseek import read_latent
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.recurrent import ReadRecurrent
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm, Table

GLOBAL, LOCAL = LAYER_TYPES
ROTARY_BASE = 10_000.0
"""Base of the rotary frequencies, where a configuration does not say."""
FULL_LAYERS = 28
"""The layers before the first one with a window, where a Qwen configuration does not say."""
CHUNKED = "chunked_attention"

Flag = bool | tuple[str, bool]
"""A fixed choice, or the field that decides with its default."""
Size = int | tuple[str, ...]
"""A fixed size, or the names of its field."""

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
WIDTHS = ("moe_intermediate_size",)
WIDE = ("intermediate_size",)
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The experts of a family."""

    width: Size = WIDTHS
    """Inner width of an expert."""
    shared: Literal["none", "count", "width", "one"] = "none"
    """What says how wide the network of all tokens is: the number of shared experts, a width, or
    nothing, as there is one expert."""
    shared_count: int = 0
    """Shared experts where the configuration does not say."""
    gated_sharing: bool = False
    """Whether a vector gates the shared experts."""
    bias: bool = False
    """Biases on the experts and the router."""
    corrected: bool = False
    """Whether a learned number corrects the score of each expert."""
    norms: int = 0
    """Further normalisations in a layer with experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The differences of a family from Llama."""

    bias: Flag = ("attention_bias", False)
    """Biases on queries, keys and values."""
    out_bias: Flag | None = None
    """Bias on the output projection; as ``bias`` where ``None``."""
    mlp_bias: Flag = False
    """Biases on the feed-forward network."""
    gated: bool = True
    """Whether the feed-forward network has a gate."""
    width: tuple[str, ...] = ("intermediate_size",)
    """The field of the inner width of dense layers."""
    norms: int = 2
    """Normalisations of a block."""
    post_norms: Flag = False
    """Whether a block has two more, after its sublayers."""
    parallel: Flag = False
    """Whether attention and feed-forward network read one of them."""
    norm_bias: bool = False
    """Biases on them."""
    final_norm: bool = True
    """Whether the normalisation after the last block has a gain."""
    head_norm: Literal["none", "head", "each head", "all heads"] = "none"
    """Gains of queries and keys: of one head, apart for each head, or over all heads."""
    norms_heads: Flag = True
    """Whether these are there."""
    gate: Literal["none", "head", "channel", "query"] = "none"
    """A learned gate of the output: for each head or channel, or a part of the query's projection,
    whose bias it has."""
    is_gated: Flag = True
    """Whether it is there."""
    sinks: Literal["none", "all", "windowed"] = "none"
    """The layers in which each head has a sink."""
    entries: int = 0
    """Further learned numbers of a block."""
    head_entries: int = 0
    """Further learned numbers of a block, for each channel of a head."""
    inner_norms: bool = False
    """Whether the mixed values and the inner channels are normalised."""
    windows: Literal["types", "all", "upper", "none"] = "types"
    """The layers with a window: those that ``layer_types`` marks or, where it is missing, all or
    those from ``max_window_layers`` on; or none."""
    switched: bool = False
    """Whether ``use_sliding_window`` switches windows on."""
    window: int | None = None
    """The window where a configuration does not mention one; a null switches it off."""
    period: int | None = None
    """Where ``layer_types`` is missing, every so many layers are global."""
    others: str = LOCAL
    """The kind of the layers between those."""
    latent: bool = False
    """Whether keys and values are expanded from one latent."""
    routed: Routed | None = None
    """Its experts."""
    tied: bool | None = False
    """Whether the head is the embedding where the configuration does not say; ``None`` if never."""
    head_bias: Flag = False
    """Bias on the head."""
    may_lack_kv_heads: bool = True
    """Whether published files may leave out the number of KV heads, which is then that of the query
    heads. In other families only a null means that."""
    head_dim: int | None = None
    """Channels of a head where the configuration does not say."""
    rotated: float = 1.0
    """The share of rotated channels where the configuration does not say."""
    base: float = ROTARY_BASE
    """The base of the rotary frequencies where the configuration does not say."""
    recurrent: Mapping[str, ReadRecurrent] | None = None
    """The readers of layers with a state, by their name in the list of layers."""
    required: Mapping[str, tuple[object, ...]] = field(
        default_factory=dict[str, tuple[object, ...]]
    )
    """Fields with the values that are counted; others are refused."""
    needs_types: bool = False
    """Whether a configuration must list its layers."""
    adjusted: bool = False
    """Whether the inner width is two thirds of what is given, rounded up."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What separates the layers of one model."""

    mixing: str
    window: int | None
    sparse: bool
    shares_indexer: bool = False


def read(recipe: Recipe, fields: Fields, name: str) -> Model:
    """Return the model of a configuration of this family.

    Raises:
        ValueError: for a field that is missing or makes no sense.
    """
    layers = fields.layers("num_hidden_layers", "n_layer", "num_layers")
    d_model = fields.size("hidden_size", "n_embd", "d_model")
    for required, values in recipe.required.items():
        if fields.has(required) and fields.content[required] not in values:
            raise fields.refuse(required, " or ".join(map(str, values)))
    heads = fields.items("num_attention_heads_per_layer")
    if heads is not None and set(heads) != {fields.size("num_attention_heads")}:
        raise fields.refuse("num_attention_heads_per_layer", "as many heads in each layer")
    norm = Norm(width=d_model, bias=recipe.norm_bias)
    norms = 1 if _flag(fields, recipe.parallel) else recipe.norms
    norms += 2 * _flag(fields, recipe.post_norms)
    kinds = [
        _Kind(mixing, _window(recipe, fields, mixing), sparse, shared)
        for mixing, sparse, shared in zip(
            _types(recipe, fields, layers),
            _sparse(recipe, fields, layers),
            _shares_indexer(fields, layers),
            strict=True,
        )
    ]

    def build(kind: _Kind) -> Layer:
        network = _routed(recipe, fields) if kind.sparse else _dense(recipe, fields)
        more = recipe.routed.norms if recipe.routed is not None and kind.sparse else 0
        inner: tuple[Norm, ...] = ()
        if recipe.inner_norms and isinstance(network, FeedForward):
            inner = (Norm(width=network.d_ff),)
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

    vocabulary = fields.size("vocab_size")
    tied = recipe.tied is not None and fields.flag("tie_word_embeddings", default=recipe.tied)
    head_bias = _flag(fields, recipe.head_bias)
    return Model(
        name=name,
        layers=build_each(kinds, build),
        vocabulary=vocabulary,
        tables=(Table(rows=vocabulary, width=d_model),),
        norms=(norm,) if recipe.final_norm else (),
        head=(Linear(inputs=d_model, outputs=vocabulary, tied=tied, bias=head_bias),),
        max_tokens=fields.optional_size("max_position_embeddings"),
    )


def _shares_indexer(fields: Fields, layers: int) -> list[bool]:
    types = fields.words("indexer_types", choices=("full", "shared"), length=layers)
    if types is not None:
        return [kind == "shared" for kind in types]
    step = fields.size("index_topk_freq", default=1)
    first = fields.count("index_skip_topk_offset", default=2)
    return [max(index - first + 1, 0) % step != 0 for index in range(layers)]


def _flag(fields: Fields, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else fields.flag(flag[0], default=flag[1])


def _types(recipe: Recipe, fields: Fields, layers: int) -> tuple[str, ...]:
    """Return the kind of each layer, by its name in the list of layers."""
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
        full = min(layers, fields.count("max_window_layers", default=FULL_LAYERS))
        return (GLOBAL,) * full + (LOCAL,) * (layers - full)
    listed = fields.numbers("attn_layer_indices", "full_attn_idxs")
    if listed is not None:
        return tuple(GLOBAL if index in listed else others for index in range(layers))
    if fields.has("attn_layer_period"):
        period, first = fields.size("attn_layer_period"), fields.count("attn_layer_offset")
        return tuple(GLOBAL if index % period == first else others for index in range(layers))
    period = recipe.period
    if period is not None:
        period = fields.size("full_attention_interval", "sliding_window_pattern", default=period)
    return tuple(
        others if period is not None and (index + 1) % period else GLOBAL for index in range(layers)
    )


def _window(recipe: Recipe, fields: Fields, mixing: str) -> int | None:
    if mixing == LOCAL:
        window = fields.optional_size("sliding_window")
        if not fields.mentions("sliding_window"):
            window = recipe.window
        if recipe.switched and not fields.flag("use_sliding_window", default=False):
            window = None
        if window is None and fields.has("layer_types"):
            raise fields.refuse("layer_types", "full_attention everywhere without a sliding window")
        return window
    if mixing == CHUNKED:
        # A chunk of tokens is kept like a window of as many.
        return fields.size("attention_chunk_size")
    return None


def _sparse(recipe: Recipe, fields: Fields, layers: int) -> list[bool]:
    """Return which layers have experts, by whichever field says so."""
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


def _dense(recipe: Recipe, fields: Fields) -> FeedForward:
    d_ff = fields.size(*recipe.width)
    if recipe.adjusted and fields.flag("block_auto_adjust_ff_dim", default=True):
        scale = fields.number("block_ffn_dim_multiplier", default=1.0)
        multiple = fields.size("block_multiple_of", default=256)
        d_ff = -(-int(scale * (2 * d_ff // 3)) // multiple) * multiple
    return FeedForward(
        d_model=fields.size("hidden_size", "n_embd", "d_model"),
        d_ff=d_ff,
        gated=recipe.gated,
        bias=_flag(fields, recipe.mlp_bias),
    )


def _routed(recipe: Recipe, fields: Fields) -> Experts:
    routed = recipe.routed or Routed()
    d_model, count = fields.size("hidden_size", "d_model"), fields.size(*COUNTS)
    width = routed.width if isinstance(routed.width, int) else fields.size(*routed.width)
    shared = _shared_width(routed, fields, width)
    return Experts(
        expert=FeedForward(d_model=d_model, d_ff=width, gated=True, bias=routed.bias),
        count=count,
        active=fields.size(*ACTIVE),
        shared=FeedForward(
            d_model=d_model, d_ff=shared, gated=True, bias=_flag(fields, recipe.mlp_bias)
        )
        if shared
        else None,
        router=Linear(inputs=d_model, outputs=count, bias=routed.bias),
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


def _heads(recipe: Recipe, fields: Fields) -> Heads:
    count = fields.size("num_attention_heads", "n_head")
    may_lack = recipe.may_lack_kv_heads or fields.mentions("num_key_value_heads")
    return Heads(
        d_model=fields.size("hidden_size", "n_embd", "d_model"),
        count=count,
        kv_count=fields.size("num_key_value_heads", default=count if may_lack else None),
        dim=fields.optional_size("head_dim") or recipe.head_dim,
    )


def _rotation(recipe: Recipe, fields: Fields, mixing: str) -> PositionConfig:
    """Return the rotation of a layer; some configurations have one for each kind of layer."""
    section = fields.section("rope_parameters")
    own = None if section is None else section.section(mixing)
    return read_rotation(
        fields if own is None else Fields({"rope_parameters": own.content}, fields.family),
        fraction=recipe.rotated,
        base=recipe.base,
    )


def _attention(recipe: Recipe, fields: Fields, kind: _Kind) -> ProjectedAttention:
    bias = _flag(fields, recipe.bias)
    heads = _heads(recipe, fields)
    config = heads.attend(
        window=kind.window,
        positions="rotary",
        rotation=_rotation(recipe, fields, kind.mixing),
        bias=bias,
        out_bias=bias if recipe.out_bias is None else _flag(fields, recipe.out_bias),
    )
    size, norms = config.size_per_head, ()
    if recipe.head_norm != "none" and _flag(fields, recipe.norms_heads):
        widths = {
            "head": (size, size),
            "each head": (size * heads.count, size * heads.kv_count),
            "all heads": (size * heads.count, size * heads.kv_count),
        }[recipe.head_norm]
        norms = tuple(Norm(width=width) for width in widths)
    if recipe.inner_norms:
        norms = (*norms, Norm(width=heads.d_model))
    has_sinks = recipe.sinks == "all" or (recipe.sinks == "windowed" and kind.window is not None)
    entries = heads.count * has_sinks + size * recipe.head_entries
    return ProjectedAttention(config=config, norms=norms, entries=entries)


def _gates(recipe: Recipe, fields: Fields) -> tuple[Linear, ...]:
    if recipe.gate == "none" or not _flag(fields, recipe.is_gated):
        return ()
    heads = _heads(recipe, fields)
    size = heads.dim or heads.d_model // heads.count
    outputs = heads.count * (1 if recipe.gate == "head" else size)
    bias = recipe.gate == "query" and _flag(fields, recipe.bias)
    return (Linear(inputs=heads.d_model, outputs=outputs, bias=bias),)


_POST = Recipe(windows="types", head_norm="all heads")
_MOE = Recipe(routed=Routed(width=WIDE))
_GATED_DELTA = {"linear_attention": recurrent.read_gated_delta}
_QWEN_NEXT = Recipe(
    head_norm="head",
    gate="query",
    period=4,
    others="linear_attention",
    rotated=0.25,
    recurrent=_GATED_DELTA,
)
_MAMBA2 = {"mamba": recurrent.read_mamba2, "linear_attention": recurrent.read_mamba2}
_LFM2 = Recipe(
    bias=False,
    head_norm="head",
    tied=True,
    others="conv",
    recurrent={"conv": recurrent.read_short_convolution},
)

_SPARSE = Recipe(latent=True, windows="none", routed=Routed(shared="count", shared_count=1))

_MISTRAL = Recipe(bias=False, windows="all", may_lack_kv_heads=False)
_QWEN = Recipe(
    bias=("attention_bias", False),
    head_norm="head",
    windows="upper",
    switched=True,
    window=4096,
    may_lack_kv_heads=False,
)

RECIPES: Mapping[str, Recipe] = {
    # Dense, Llama's block with other biases, norms or gates.
    "llama": Recipe(mlp_bias=("mlp_bias", False), windows="none"),
    "mistral": replace(_MISTRAL, window=4096),
    "phi3": replace(_MISTRAL, may_lack_kv_heads=True),
    "qwen2": replace(_QWEN, bias=True, out_bias=False, head_norm="none"),
    "qwen3": replace(_QWEN, head_dim=128),
    "apertus": Recipe(gated=False, head_norm="head", entries=2),
    "arcee": Recipe(gated=False, mlp_bias=("mlp_bias", False)),
    "bitnet": Recipe(inner_norms=True),
    "cohere": Recipe(norms=1, tied=True, head_norm="each head", norms_heads=("use_qk_norm", False)),
    "cohere2": Recipe(norms=1, tied=True, period=4),
    "cwm": Recipe(bias=False, mlp_bias=("mlp_bias", False), needs_types=True),
    "ernie4_5": Recipe(bias=("use_bias", False), mlp_bias=("use_bias", False), tied=True),
    "exaone4": Recipe(bias=False, head_norm="head", period=4),
    "glm": Recipe(bias=("attention_bias", False), out_bias=False, rotated=0.5),
    "glm4": Recipe(bias=("attention_bias", False), out_bias=False, rotated=0.5, norms=4),
    "granite": Recipe(mlp_bias=("mlp_bias", False)),
    "granite_swa": Recipe(mlp_bias=("mlp_bias", False), sinks="all", needs_types=True, tied=True),
    "diffllama": Recipe(head_entries=4),
    "hyperclovax": Recipe(mlp_bias=("mlp_bias", False), post_norms=("use_post_norm", True)),
    "helium": Recipe(out_bias=False, mlp_bias=("mlp_bias", False)),
    "hunyuan_v1_dense": Recipe(head_norm="head"),
    "internlm3": Recipe(
        bias=("qkv_bias", False), out_bias=("bias", False), mlp_bias=("bias", False)
    ),
    "iquestcoder": Recipe(mlp_bias=("mlp_bias", False)),
    "jais2": Recipe(
        bias=("attention_bias", True), mlp_bias=("mlp_bias", True), gated=False, norm_bias=True
    ),
    "ministral": Recipe(bias=False, needs_types=True),
    "ministral3": Recipe(bias=False, windows="all"),
    "nanochat": Recipe(gated=False, norms=0, final_norm=False),
    "nemotron": Recipe(mlp_bias=("mlp_bias", False), gated=False, norm_bias=True, rotated=0.5),
    "olmo": Recipe(norms=0, final_norm=False),
    "olmo2": _POST,
    "olmo3": replace(_POST, period=4),
    "seed_oss": Recipe(
        bias=("attention_bias", True),
        out_bias=("attention_out_bias", False),
        mlp_bias=("mlp_bias", False),
    ),
    "smollm3": Recipe(mlp_bias=("mlp_bias", False), tied=True),
    "stablelm": Recipe(
        bias=("use_qkv_bias", False),
        out_bias=False,
        norm_bias=True,
        parallel=("use_parallel_residual", False),
        head_norm="each head",
        norms_heads=("qk_layernorm", False),
        rotated=0.25,
    ),
    "starcoder2": Recipe(
        bias=("use_bias", True),
        mlp_bias=("use_bias", True),
        gated=False,
        norm_bias=True,
        windows="all",
        tied=True,
    ),
    "vaultgemma": Recipe(needs_types=True, tied=True, head_dim=256),
    # Mixtures of experts.
    "mixtral": replace(_MISTRAL, base=1_000_000.0, routed=Routed(width=WIDE)),
    "qwen3_moe": replace(_QWEN, windows="all", routed=Routed()),
    "afmoe": Recipe(
        norms=4,
        head_norm="head",
        gate="channel",
        period=4,
        routed=Routed(shared="count", corrected=True),
    ),
    "aria_text": Recipe(
        mlp_bias=("mlp_bias", False),
        routed=Routed(width=WIDE, shared="count", shared_count=2),
    ),
    "cohere2_moe": Recipe(
        norms=1,
        tied=True,
        period=4,
        routed=Routed(width=WIDE, shared="count"),
    ),
    "dots1": Recipe(head_norm="head", routed=Routed(shared="count")),
    "ernie4_5_moe": Recipe(
        bias=("use_bias", False),
        mlp_bias=("use_bias", False),
        tied=True,
        head_bias=("use_bias", False),
        routed=Routed(shared="count", shared_count=2, corrected=True),
    ),
    "exaone_moe": Recipe(
        bias=False, head_norm="head", period=4, routed=Routed(shared="count", shared_count=1)
    ),
    "flex_olmo": replace(_POST, windows="none", routed=Routed(width=WIDE)),
    "flint": Recipe(head_norm="head", sinks="all", needs_types=True, routed=Routed(shared="width")),
    "glm4_moe": Recipe(
        out_bias=False,
        head_norm="head",
        norms_heads=("use_qk_norm", False),
        rotated=0.5,
        routed=Routed(shared="count", shared_count=1),
    ),
    "gpt_oss": Recipe(
        bias=("attention_bias", True), sinks="all", period=2, routed=Routed(width=WIDE, bias=True)
    ),
    "granitemoe": _MOE,
    "granitemoeshared": Recipe(routed=Routed(width=WIDE, shared="width")),
    "granitemoe_swa": Recipe(
        sinks="all",
        needs_types=True,
        routed=Routed(width=WIDE, shared="width"),
    ),
    "hunyuan_v1_moe": Recipe(head_norm="head", routed=Routed(width=WIDE, shared="one")),
    "hy_v3": Recipe(
        head_norm="head",
        mlp_bias=("mlp_bias", False),
        routed=Routed(shared="count", shared_count=1),
    ),
    "kolibri1": Recipe(
        bias=False,
        head_norm="head",
        norms=4,
        needs_types=True,
        routed=Routed(shared="width"),
    ),
    "laguna": Recipe(
        head_norm="head",
        gate="head",
        required={"gating": (True, "per-head")},
        routed=Routed(shared="width", corrected=True),
    ),
    "llama4_text": Recipe(
        needs_types=True,
        others=CHUNKED,
        width=("intermediate_size_mlp",),
        routed=Routed(width=WIDE, shared="one"),
    ),
    "mellum": Recipe(head_norm="head", routed=Routed()),
    "minimax_m2": Recipe(bias=False, head_norm="all heads", routed=Routed(width=WIDE)),
    "olmoe": Recipe(head_norm="all heads", routed=Routed(width=WIDE)),
    "phimoe": Recipe(
        norm_bias=True,
        windows="all",
        routed=Routed(width=WIDE),
        head_bias=("lm_head_bias", False),
    ),
    "qwen2_moe": Recipe(
        bias=("qkv_bias", True),
        out_bias=False,
        routed=Routed(shared="width", gated_sharing=True),
    ),
    "solar_open": Recipe(out_bias=False, routed=Routed(shared="count", shared_count=1)),
    # Layers with a state between layers of attention.
    "bamba": Recipe(mlp_bias=("mlp_bias", False), rotated=0.5, others="mamba", recurrent=_MAMBA2),
    "granitemoehybrid": Recipe(
        width=("shared_intermediate_size",),
        needs_types=True,
        recurrent=_MAMBA2,
        routed=Routed(width=WIDE, shared="width"),
    ),
    "jamba": Recipe(
        bias=False,
        others="mamba",
        recurrent={"mamba": recurrent.read_mamba},
        routed=Routed(width=WIDE),
    ),
    "kimi_linear": Recipe(
        latent=True,
        tied=None,
        needs_types=True,
        recurrent={"linear_attention": recurrent.read_kimi_delta},
        routed=Routed(shared="count", shared_count=1),
    ),
    "lfm2": replace(_LFM2, adjusted=True),
    "lfm2_moe": replace(_LFM2, routed=Routed()),
    "lfm3": replace(
        _LFM2,
        bias=("attention_bias", False),
        post_norms=("use_sandwich_norm", True),
        gate="head",
        is_gated=("use_attention_gate", True),
    ),
    "minimax": Recipe(
        bias=False,
        needs_types=True,
        recurrent={"linear_attention": recurrent.read_lightning},
        routed=Routed(width=WIDE),
    ),
    "olmo_hybrid": Recipe(head_norm="all heads", needs_types=True, recurrent=_GATED_DELTA),
    "qwen3_next": replace(_QWEN_NEXT, routed=Routed(shared="width", gated_sharing=True)),
    "qwen3_5_text": _QWEN_NEXT,
    "qwen3_5_moe_text": replace(_QWEN_NEXT, routed=Routed(shared="width", gated_sharing=True)),
    # Keys and values from one latent.
    "axk1": Recipe(latent=True, routed=Routed(shared="count", shared_count=1, norms=1)),
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "glm4_moe_lite": Recipe(latent=True, routed=Routed(shared="count", shared_count=1)),
    "minicpm3": Recipe(latent=True, mlp_bias=("mlp_bias", False), tied=True),
    "youtu": Recipe(latent=True, tied=True),
}
"""The families of this file, by ``model_type``."""

READERS: Mapping[str, Reader] = {name: partial(read, recipe) for name, recipe in RECIPES.items()}
