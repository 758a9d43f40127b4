"""DeepSeek V2 and V3 with latent attention, and V4 with one shared, compressed tensor.

The layer that predicts an additional token is not counted; transformers leaves it out too.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping, Sequence

from qkvary.arch.blocks import (
    CompressedAttention,
    Compressor,
    Experts,
    FeedForward,
    Indexer,
    LatentAttention,
    Layer,
)
from qkvary.arch.families.attention_fields import build_decoder, build_each
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm

WINDOWED = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
LAYER_TYPES = (WINDOWED, SPARSE, HEAVY)
"""The kinds of layers of DeepSeek V4: with a window only, or also with summaries of a few or of
many tokens."""
NETWORK_TYPES = ("hash_moe", "moe")
"""The rules that choose experts: by a table, or by the input. In both cases a matrix scores
them."""
RATES = {SPARSE: 4, HEAVY: 128}
"""Tokens per summary if a configuration omits the rate."""
TYPE_OF_RATIO = {0: WINDOWED, 4: SPARSE, 128: HEAVY}
"""The kind of layer for each ratio in published files."""
SCALES = 3
"""Number of learned factors of a hyper-connection: one each for what it reads, writes and mixes."""


def _read_latent(fields: Fields, name: str, *, bias: bool, predicts: int) -> Model:
    """Return a DeepSeek V2 or V3; ``predicts`` is the default of layers for further tokens."""
    if fields.size("moe_layer_freq", default=1) != 1:
        raise fields.refuse("moe_layer_freq", "1, experts in every layer after the dense ones,")
    layers, d_model = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    dense_layers = min(layers, fields.count("first_k_dense_replace", default=0))
    attention = read_latent(fields)
    inner = fields.size("intermediate_size") if dense_layers else 1
    dense = FeedForward(d_model=d_model, d_ff=inner, gated=True, bias=bias)
    networks: list[FeedForward | Experts] = [dense] * dense_layers
    if dense_layers < layers:
        networks += [_read_experts(fields, bias=bias)] * (layers - dense_layers)
    norm = Norm(width=d_model)
    layers = build_each(
        networks,
        lambda network: Layer(attention=attention, feed_forward=(network,), norms=(norm, norm)),
    )
    return build_decoder(fields, name, layers, tied=False, notes=_note_predictors(fields, predicts))


def read_latent(fields: Fields, *, shares_indexer: bool = False) -> LatentAttention:
    """Return the latent attention of a configuration, whose indexer may be an earlier layer's."""
    indexer = None
    if fields.has("index_topk"):
        indexer = Indexer(
            width=fields.size("index_head_dim"),
            heads=fields.size("index_n_heads"),
            top=fields.size("index_topk"),
            is_shared=shares_indexer,
        )
    return LatentAttention(
        d_model=fields.size("hidden_size"),
        num_heads=fields.size("num_attention_heads"),
        q_rank=fields.optional_size("q_lora_rank"),
        kv_rank=fields.size("kv_lora_rank"),
        nope_dim=fields.size("qk_nope_head_dim"),
        rope_dim=fields.size("qk_rope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        bias=fields.flag("attention_bias", default=False),
        indexer=indexer,
    )


def _read_experts(fields: Fields, *, bias: bool) -> Experts:
    d_model, inner = fields.size("hidden_size"), fields.size("moe_intermediate_size")
    count, shared = fields.size("n_routed_experts"), fields.count("n_shared_experts")
    return Experts(
        expert=FeedForward(d_model=d_model, d_ff=inner, gated=True),
        count=count,
        active=fields.size("num_experts_per_tok"),
        shared=FeedForward(d_model=d_model, d_ff=shared * inner, gated=True, bias=bias)
        if shared
        else None,
        router=Linear(inputs=d_model, outputs=count),
    )


def _read_deepseek_v4(fields: Fields, name: str) -> Model:
    if fields.size("n_shared_experts", default=1) != 1:
        raise fields.refuse("n_shared_experts", "1")
    if fields.size("num_key_value_heads", default=1) != 1:
        raise fields.refuse("num_key_value_heads", "1, the one tensor that keys and values share,")
    layers, d_model = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    streams = fields.size("hc_mult", default=4)
    types = _read_layer_types(fields, layers)
    # The number of layers whose experts are chosen by a table.
    hashed = min(layers, fields.count("num_hash_layers", default=3))
    if fields.has("mlp_layer_types"):
        networks = _cut(fields, "mlp_layer_types", layers, NETWORK_TYPES)
        hashed = networks.count(NETWORK_TYPES[0])
    bias = fields.flag("mlp_bias", default=False)
    experts = _read_experts(fields.replace(n_shared_experts=1), bias=bias)
    connection = Linear(inputs=streams * d_model, outputs=(2 + streams) * streams)
    norm = Norm(width=d_model)

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
    note = f"does not count {tables:,} numbers of experts, the tables of {hashed} layers that hash"
    return build_decoder(
        fields,
        name,
        build_each(types, build_layer),
        tied=False,
        others=(Linear(inputs=streams * d_model, outputs=streams),),
        entries=streams + 1,
        notes=(*_note_predictors(fields, 1), *([note] if hashed else [])),
    )


def _read_compressed(fields: Fields, kind: str) -> CompressedAttention:
    width, sparse, rate = fields.size("head_dim"), kind == SPARSE, None
    if kind != WINDOWED:
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
        return _cut(fields, "layer_types", layers, LAYER_TYPES)
    ratios = fields.items("compress_ratios")
    if ratios is None:
        # Two layers with many tokens per summary, then alternately few and many.
        return [HEAVY if index < 2 or index % 2 == 0 else SPARSE for index in range(layers)]
    if len(ratios) < layers:
        raise fields.refuse("compress_ratios", f"at least {layers} entries")
    # Published files have one more entry, for the layer that predicts a further token.
    kinds = [TYPE_OF_RATIO.get(ratio) for ratio in ratios[:layers] if isinstance(ratio, int)]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < layers:
        choices = ", ".join(map(str, TYPE_OF_RATIO))
        raise fields.refuse("compress_ratios", f"numbers out of {choices}")
    return known


def _cut(fields: Fields, name: str, layers: int, choices: Sequence[str]) -> tuple[str, ...]:
    """Return the first entries of a list of words that may be longer than the layers."""
    found = fields.items(name) or ()
    if len(found) < layers:
        raise fields.refuse(name, f"at least {layers} entries")
    first = Fields({name: found[:layers]}, fields.family)
    return first.words(name, choices=choices, length=layers) or ()


def _note_predictors(fields: Fields, predicts: int) -> tuple[str, ...]:
    further = fields.count("num_nextn_predict_layers", "num_mtp_layers", default=predicts)
    return ("does not count what predicts further tokens",) if further else ()


READERS: Mapping[str, Reader] = {
    "deepseek_v2": lambda fields, name: _read_latent(
        fields, name, bias=fields.flag("mlp_bias", default=False), predicts=0
    ),
    "deepseek_v3": lambda fields, name: _read_latent(fields, name, bias=False, predicts=1),
    "kimi_k2": lambda fields, name: _read_latent(fields, name, bias=False, predicts=0),
    "deepseek_v4": _read_deepseek_v4,
}
