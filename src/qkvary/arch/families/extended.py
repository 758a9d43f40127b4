"""The decoders with a special part that recipes (``families.recipes``) cannot express.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from qkvary.arch.blocks import CompressedAttention, Compressor, Experts, FeedForward, Layer
from qkvary.arch.families import recipes
from qkvary.arch.families.attention_fields import (
    LAYER_TYPES,
    build_decoder,
    build_each,
    note_predictors,
    read_latent,
)
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.recipes import Recipe, Routed
from qkvary.arch.models import Model, map_layers
from qkvary.arch.parts import Linear, Norm

GLOBAL, LOCAL = LAYER_TYPES
INDEXED = "indexed_attention"

_EXPERTS = Routed(width=recipes.WIDE)
_DOGE = Recipe(
    head_norm="qk-norm",
    windows="all",
    mlp_bias=("mlp_bias", False),
    required={"is_moe": (False,)},
)
_JETMOE = Recipe(bias=False, windows="none", routed=_EXPERTS, tied=True)
_DBRX = Recipe(bias=False, windows="none", routed=_EXPERTS, tied=None)
_HRM = Recipe(
    gate="query",
    windows="none",
    mlp_bias=("mlp_bias", False),
    norms=0,
    final_norm=False,
    defaults={"head_dim": 128},
    ignored=("num_key_value_heads",),
)
_MODERNBERT = Recipe(
    needs_types=True,
    mlp_bias=("mlp_bias", False),
    tied=True,
    head_bias=("decoder_bias", True),
    ignored=("num_key_value_heads", "head_dim"),
)
_LATENT = Recipe(latent=True, windows="none", routed=Routed(shared="count", shared_count=1))
_DEEPSEEK_V3 = replace(_LATENT, routed=Routed(shared="count"), required={"moe_layer_freq": (1,)})
_DEEPSEEK_V2 = replace(_DEEPSEEK_V3, mlp_bias=("mlp_bias", False))
_AXK2 = replace(_LATENT, defaults={"first_k_dense_replace": 1})
_HY_V4 = replace(
    _LATENT, gate="channel", defaults={"first_k_dense_replace": 1, "index_topk_freq": 4}
)
_DOTS3 = replace(_AXK2, routed=Routed(shared="width"), rotary_base=80_000_000.0)


def _change_layers(model: Model, **changes: Any) -> Model:
    layers = map_layers(model.layers, lambda layer: replace(layer, **changes))
    return replace(model, layers=tuple(layers))


def _read_doge(fields: Fields, name: str) -> Model:
    """Return a Doge, where a matrix computes a score bias for each token from its value."""
    model = recipes.read(_DOGE, fields, name)
    config = recipes.read_head_config(_DOGE, fields, recipes.Kind(GLOBAL, None, sparse=False))
    step = Linear(config.kv_width, config.num_kv_heads, bias=config.bias)
    # One decay per head, and one factor per channel of both residual connections.
    entries = config.num_kv_heads + 2 * config.d_model
    return _change_layers(model, others=(step,), entries=entries)


def _read_jetmoe(fields: Fields, name: str) -> Model:
    """Return a JetMoE, where experts with their own heads project queries and outputs."""
    active, kv_heads = fields.size(*recipes.ACTIVE), fields.size("num_key_value_heads")
    size = fields.size("kv_channels", "head_dim")
    given = fields.replace(num_attention_heads=kv_heads * active, head_dim=size)
    model = recipes.read(_JETMOE, given, name)
    d_model, count = model.d_model, fields.size(*recipes.COUNTS)
    # Experts that a token passes through are counted as projections, the other experts here.
    idle = (count - active) * 2 * kv_heads * size * d_model
    router = Linear(d_model, count)
    return _change_layers(model, others=(router,), entries=idle + 2 * d_model)


def _read_dbrx(fields: Fields, name: str) -> Model:
    attention = fields.nested("attn_config")
    experts = fields.nested("ffn_config")
    content: dict[str, object] = {
        "hidden_size": fields.size("d_model"),
        "num_attention_heads": fields.size("n_heads"),
        "num_key_value_heads": attention.size("kv_n_heads", default=1),
        "num_hidden_layers": fields.size("n_layers"),
        "vocab_size": fields.size("vocab_size"),
        "max_position_embeddings": fields.optional_size("max_seq_len"),
        "intermediate_size": experts.size("ffn_hidden_size", default=3584),
        "num_local_experts": experts.size("moe_num_experts", default=4),
        "num_experts_per_tok": experts.size("moe_top_k", default=1),
        "rope_theta": attention.number("rope_theta", default=recipes.ROTARY_BASE),
    }
    return recipes.read(_DBRX, Fields(content, fields.family), name)


def _read_hrm(fields: Fields, name: str) -> Model:
    """Return an HRM, whose two stacks run several times; each run has its own cache."""
    turns = fields.size("H_cycles", default=2) * (fields.size("L_cycles", default=3) + 1)
    every = fields.layers("num_hidden_layers")
    depth = fields.size("num_layers_per_stack", default=every)
    stack = recipes.read(_HRM, fields.replace(num_hidden_layers=depth), name)
    again = _change_layers(stack, has_own_weights=False)
    layers = (*stack.layers * 2, *again.layers * (turns - 2))
    return replace(stack, layers=layers, entries=stack.d_model)


def _read_modernbert(fields: Fields, name: str) -> Model:
    layers = fields.layers("num_hidden_layers")
    step = fields.size("global_attn_every_n_layers", default=3)
    usual = [LOCAL if index % step else GLOBAL for index in range(layers)]
    window = max(1, fields.size("local_attention", default=128) // 2)
    content = {"layer_types": usual, "sliding_window": window, **fields.content}
    model = recipes.read(_MODERNBERT, Fields(content, fields.family), name)
    d_model, bias = model.d_model, fields.flag("norm_bias", default=False)
    norm = Norm(d_model, bias=bias)
    first, *others = _change_layers(model, norms=(norm, norm)).layers
    # The first layer reads the output of the norm after the embedding.
    layers = (replace(first, norms=(norm,)), *others)
    bias = fields.flag("classifier_bias", default=False)
    dense = Linear(d_model, d_model, bias=bias)
    return replace(model, layers=layers, norms=(norm,) * 3, head=(dense, *model.head))


def _read_deepseek(fields: Fields, name: str, *, recipe: Recipe, predicts: int) -> Model:
    """Return a DeepSeek V2 or V3; ``predicts`` is the default number of MTP layers."""
    model = recipes.read(recipe, fields, name)
    return replace(model, notes=note_predictors(fields, predicts))


def _read_axk2(fields: Fields, name: str) -> Model:
    model = recipes.read(_AXK2, fields, name)
    heads, rank = fields.size("num_attention_heads"), fields.size("q_lora_rank")
    latent = read_latent(fields)
    narrow = fields.size("gated_norm_rank", default=16)
    into = Linear(model.d_model, narrow)
    out = Linear(narrow, model.d_model)
    # One matrix makes queries and gates from the query's latent, before and after its norm.
    queries = Linear(rank, heads * latent.key_dim)
    gates = Linear(2 * rank, heads * latent.value_dim)

    def add(layer: Layer) -> Layer:
        gated_norms = 2 if isinstance(layer.feed_forward[0], Experts) else 1
        return replace(layer, others=(queries, gates, *(into, out) * gated_norms))

    return replace(model, layers=tuple(map_layers(model.layers, add)))


def _read_hy_v4(fields: Fields, name: str) -> Model:
    """Return a Hy V4, whose sublayers read and write several residual streams."""
    model = recipes.read(_HY_V4, fields, name)
    streams = fields.size("hc_mult", default=4)
    wide = streams * model.d_model
    connection = Linear(wide, 2 * streams)
    # Per sublayer two offsets and two factors for each stream, and one sink for each head.
    entries = 2 * (connection.outputs + 2) + fields.size("num_attention_heads")
    others = (*model.layers[0].others, connection, connection)
    model = _change_layers(model, others=others, entries=entries)
    choice = Linear(wide, streams)
    return replace(model, others=(choice,), entries=streams + 1)


_DOTS3_SIZES = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""Default sizes of the layers with a window."""


def _read_dots3(fields: Fields, name: str) -> Model:
    """Return a Dots 3, whose layers with a window have latents of a different size."""
    count = fields.layers("num_hidden_layers")
    usual = [INDEXED if index < 2 or index % 4 == 1 else LOCAL for index in range(count)]
    words = (GLOBAL, LOCAL, INDEXED)
    types = fields.words("layer_types", choices=words, length=count) or usual
    listed = fields.nested("per_layer_config")
    # In files that have no sizes per layer, full attention means an indexer.
    indexed = fields.flag("use_dsa", default=not fields.has("per_layer_config"))
    forbidden = fields.has("use_dsa") and not indexed
    window = fields.size("sliding_window", "sliding_window_size", default=512)
    shared = "moe_shared_expert_intermediate_size"
    width = fields.size(shared, "shared_experts_intermediate_size", default=1536)
    total = width * fields.size("n_shared_experts", default=1)
    model = recipes.read(_DOTS3, fields.replace(**{shared: total}), name)

    def build(index: int, layer: Layer) -> Layer:
        kind = types[index]
        own = listed.section(str(index))
        usual = _dots3_aliases(fields) if own is None and kind == LOCAL else {}
        attention = read_latent(fields.replace(**usual if own is None else own.content))
        if kind == LOCAL:
            attention = replace(attention, indexer=None, window=window)
        elif forbidden or (kind == GLOBAL and not indexed):
            attention = replace(attention, indexer=None)
        return replace(
            layer,
            attention=attention,
            norms=(*layer.norms, Norm(attention.rope_dim)),
            others=(Linear(model.d_model, attention.num_heads),),
        )

    layers = [build(index, layer) for index, layer in enumerate(model.layers)]
    # Equal layers are one object, which counting relies on.
    alike: dict[Layer, Layer] = {}
    same = tuple(alike.setdefault(layer, layer) for layer in layers)
    return replace(model, layers=same)


def _dots3_aliases(fields: Fields) -> dict[str, int]:
    sizes = {key: fields.size(f"swa_{key}", default=size) for key, size in _DOTS3_SIZES.items()}
    rope = fields.size("swa_head_dim", default=256) - sizes["qk_nope_head_dim"]
    sizes["qk_rope_head_dim"] = fields.size("swa_qk_rope_head_dim", default=rope)
    return sizes


def _read_longcat(fields: Fields, name: str) -> Model:
    """Return a LongCat. Each block counts as two layers, and the first layer has experts."""
    d_model, count = fields.size("hidden_size"), fields.size(*recipes.COUNTS)
    zero = fields.count("zero_expert_num", default=256)
    wide = fields.size("ffn_hidden_size", "intermediate_size")
    narrow = fields.size("expert_ffn_hidden_size", "moe_intermediate_size")
    experts = Experts(
        expert=FeedForward(d_model, narrow, gated=True),
        count=count,
        active=fields.size("moe_topk", "num_experts_per_tok"),
        router=Linear(d_model, count + zero),
    )
    layers = fields.layers("num_layers")
    given = fields.replace(intermediate_size=wide, num_hidden_layers=layers, n_routed_experts=None)
    dense = recipes.read(replace(_LATENT, routed=None), given, name)
    first = dense.layers[0]
    both = replace(first, feed_forward=(experts, *first.feed_forward))
    note = "every chosen expert is counted in full, although zero-computation experts cost less"
    return replace(dense, layers=(both, first) * len(dense.layers), notes=(note,) if zero else ())


SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
RATES = {SPARSE: 4, HEAVY: 128}
"""Default number of tokens per summary in layers of DeepSeek V4."""
TYPE_OF_RATIO: Mapping[object, str] = {0: LOCAL, 4: SPARSE, 128: HEAVY}
"""The type of layer for each compression ratio in published files of DeepSeek V4."""
SCALES = 3
"""Number of learned factors of a hyper-connection: one each for reading, writing and mixing."""


_DEEPSEEK_V4 = Recipe(mlp_bias=("mlp_bias", False), routed=Routed(shared="count", shared_count=1))


def _read_deepseek_v4(fields: Fields, name: str) -> Model:
    """Return a DeepSeek V4, whose keys and values are one shared, compressed tensor."""
    fields.allow({"n_shared_experts": (1,), "num_key_value_heads": (1,)})
    layers, d_model = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    streams = fields.size("hc_mult", default=4)
    types = _read_layer_types(fields, layers)
    # The number of layers whose experts are chosen by a table.
    hashed = min(layers, fields.count("num_hash_layers", default=3))
    if fields.has("mlp_layer_types"):
        hashed = _cut(fields, "mlp_layer_types", layers, ("hash_moe", "moe")).count("hash_moe")
    experts = recipes.read_experts(_DEEPSEEK_V4, fields)
    connection = Linear(streams * d_model, (2 + streams) * streams)
    norm = Norm(d_model)

    def build_layer(kind: str) -> Layer:
        return Layer(
            attention=_read_compressed(fields, kind),
            feed_forward=(experts,),
            norms=(norm, norm),
            others=(connection, connection),
            entries=2 * (connection.outputs + SCALES),
            products=2 * streams**2 * d_model,
        )

    tables = fields.size("vocab_size") * experts.active * hashed
    note = (
        f"{hashed} layers choose experts by hashing tokens; the {tables:,} entries of their hash "
        "tables are not counted"
    )
    return build_decoder(
        fields,
        name,
        build_each(types, build_layer),
        tied=False,
        others=(Linear(streams * d_model, streams),),
        entries=streams + 1,
        notes=(*note_predictors(fields, 1), *([note] if hashed else [])),
    )


def _read_compressed(fields: Fields, kind: str) -> CompressedAttention:
    width, sparse, rate = fields.size("head_dim"), kind == SPARSE, None
    if kind != LOCAL:
        older = {SPARSE: "compress_rate_csa", HEAVY: "compress_rate_hca"}[kind]
        nested = fields.nested("compress_rates")
        rate = fields.size(older, default=nested.size(kind, default=RATES[kind]))
    return CompressedAttention(
        d_model=fields.size("hidden_size"),
        num_heads=fields.size("num_attention_heads"),
        head_dim=width,
        q_rank=fields.size("q_lora_rank"),
        o_groups=fields.size("o_groups"),
        o_rank=fields.size("o_lora_rank"),
        window=fields.size("sliding_window"),
        compressor=None if rate is None else Compressor(width=width, rate=rate, overlapping=sparse),
        indexer=Compressor(width=fields.size("index_head_dim"), rate=rate, overlapping=True)
        if sparse and rate is not None
        else None,
        index_heads=fields.size("index_n_heads") if sparse else 0,
        index_top=fields.size("index_topk") if sparse else 0,
    )


def _read_layer_types(fields: Fields, layers: int) -> Sequence[str]:
    if fields.has("layer_types"):
        return _cut(fields, "layer_types", layers, (LOCAL, SPARSE, HEAVY))
    if fields.has("compress_ratios"):
        ratios = _cut(fields, "compress_ratios", layers, tuple(TYPE_OF_RATIO))
        return [TYPE_OF_RATIO[ratio] for ratio in ratios]
    # Two layers with many tokens per summary, then alternately few and many.
    return [HEAVY if index < 2 or index % 2 == 0 else SPARSE for index in range(layers)]


def _cut(fields: Fields, name: str, layers: int, choices: tuple[object, ...]) -> tuple[Any, ...]:
    """Return the entries of the first ``layers`` layers; refuse a shorter list."""
    found = (fields.items(name) or ())[:layers]
    if len(found) < layers or not all(one in choices for one in found):
        words = ", ".join(map(str, choices))
        raise fields.refuse(name, f"at least {layers} entries, each one of {words}")
    return found


READERS: Mapping[str, Reader] = {
    "doge": _read_doge,
    "jetmoe": _read_jetmoe,
    "dbrx": _read_dbrx,
    "hrm_text": _read_hrm,
    "modernbert-decoder": _read_modernbert,
    "deepseek_v2": partial(_read_deepseek, recipe=_DEEPSEEK_V2, predicts=0),
    "deepseek_v3": partial(_read_deepseek, recipe=_DEEPSEEK_V3, predicts=1),
    "kimi_k2": partial(_read_deepseek, recipe=_DEEPSEEK_V3, predicts=0),
    "axk2": _read_axk2,
    "hy_v4": _read_hy_v4,
    "dots3_note_text": _read_dots3,
    "longcat_flash": _read_longcat,
    "deepseek_v4": _read_deepseek_v4,
}
