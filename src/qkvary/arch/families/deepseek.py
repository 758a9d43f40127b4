"""DeepSeek V4, whose keys and values are one shared, compressed tensor.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping, Sequence

from qkvary.arch.blocks import CompressedAttention, Compressor, Layer
from qkvary.arch.families.attention_fields import build_decoder, build_each, note_predictors
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.recipes import Recipe, Routed, read_experts
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm

WINDOWED = "sliding_attention"
SPARSE = "compressed_sparse_attention"
HEAVY = "heavily_compressed_attention"
LAYER_TYPES = (WINDOWED, SPARSE, HEAVY)
"""Layers with a window only, or also with summaries of a few or of many tokens."""
NETWORK_TYPES = ("hash_moe", "moe")
"""The rules that choose experts: by a table, or by the input."""
RATES = {SPARSE: 4, HEAVY: 128}
"""Tokens per summary if a configuration omits the rate."""
TYPE_OF_RATIO = {0: WINDOWED, 4: SPARSE, 128: HEAVY}
"""The kind of layer for each ratio in published files."""
SCALES = 3
"""Number of learned factors of a hyper-connection: one each for what it reads, writes and mixes."""


_EXPERTS = Recipe(mlp_bias=("mlp_bias", False), routed=Routed(shared="count", shared_count=1))


def _read_deepseek_v4(fields: Fields, name: str) -> Model:
    fields.require({"n_shared_experts": (1,), "num_key_value_heads": (1,)})
    layers, d_model = fields.layers("num_hidden_layers"), fields.size("hidden_size")
    streams = fields.size("hc_mult", default=4)
    types = _read_layer_types(fields, layers)
    # The number of layers whose experts are chosen by a table.
    hashed = min(layers, fields.count("num_hash_layers", default=3))
    if fields.has("mlp_layer_types"):
        networks = _cut(fields, "mlp_layer_types", layers, NETWORK_TYPES)
        hashed = networks.count(NETWORK_TYPES[0])
    experts = read_experts(_EXPERTS, fields)
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
        raise fields.refuse("compress_ratios", f"numbers from {choices}")
    return known


def _cut(fields: Fields, name: str, layers: int, choices: Sequence[str]) -> tuple[str, ...]:
    """Return one word per layer, from a list that may have more entries than layers."""
    found = fields.items(name) or ()
    if len(found) < layers:
        raise fields.refuse(name, f"at least {layers} entries")
    first = Fields({name: found[:layers]}, fields.family)
    return first.words(name, choices=choices, length=layers) or ()


READERS: Mapping[str, Reader] = {"deepseek_v4": _read_deepseek_v4}
