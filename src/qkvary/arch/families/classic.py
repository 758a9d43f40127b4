"""The families with LayerNorm, such as GPT-2, OPT, Bloom, Falcon, MPT and Phi 2.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from qkvary.arch.attention import PositionConfig
from qkvary.arch.blocks import FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import Heads, build_decoder, build_each, read_rotation
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm, Table

OPT_OFFSET = 2
"""Number of unused rows at the start of OPT's learned positions."""


def _read_gpt2(fields: Fields, name: str, *, may_share_heads: bool = False) -> Model:
    """Return a GPT-2 or a StarCoder. In a StarCoder, all query heads may share one KV head."""
    fields.allow({"add_cross_attention": (False,)})
    heads = _gpt_heads(fields)
    if may_share_heads and fields.flag("multi_query", default=True):
        heads = replace(heads, kv_count=1)
    layer = _build_layer(heads, d_ff=fields.size("n_inner", default=4 * heads.d_model))
    return _build(fields, name, layer, **_learn_positions(fields, heads))


def _read_gpt1(fields: Fields, name: str) -> Model:
    """Return a GPT-1, whose norms follow the sublayers, so that it needs no final norm."""
    note = "transformers keeps no cache for this family"
    return replace(_read_gpt2(fields, name), norms=(), notes=(note,))


def _read_ctrl(fields: Fields, name: str) -> Model:
    layer = _build_layer(_gpt_heads(fields), d_ff=fields.size("dff"))
    return _build(fields, name, layer, head_bias=True)


def _read_biogpt(fields: Fields, name: str) -> Model:
    heads = _equal_heads(fields)
    layer = _build_layer(heads, d_ff=fields.size("intermediate_size"))
    return _build(fields, name, layer, **_learn_positions(fields, heads, unused=OPT_OFFSET))


def _read_japanese_neox(fields: Fields, name: str) -> Model:
    heads = _equal_heads(fields)
    d_ff = fields.size("intermediate_multiple_size", default=4) * heads.d_model
    rotation = read_rotation(fields)
    layer = _build_layer(heads, d_ff=d_ff, bias=False, positions="rotary", rotation=rotation)
    model = _build(fields, name, layer)
    # Only the attention of the last layer adds a bias.
    last = replace(layer, entries=heads.d_model)
    return replace(model, layers=(*model.layers[:-1], last))


def _read_opt(fields: Fields, name: str) -> Model:
    heads = _equal_heads(fields)
    d_model, vocabulary = heads.d_model, fields.size("vocab_size")
    bias = fields.flag("enable_bias", default=True)
    layer = _build_layer(heads, d_ff=fields.size("ffn_dim"), bias=bias)
    if not fields.flag("layer_norm_elementwise_affine", default=True):
        layer = replace(layer, norms=())
    ends_normed = fields.flag("do_layer_norm_before", default=True) and not fields.flag(
        "_remove_final_layer_norm", default=False
    )
    width = fields.size("word_embed_proj_dim", default=d_model)
    into, out = Linear(width, d_model), Linear(d_model, width)
    tied = fields.flag("tie_word_embeddings", default=True)
    return _build(
        fields,
        name,
        layer,
        tables=(Table(vocabulary, width),),
        norms=layer.norms[:1] if ends_normed else (),
        head=(Linear(width, vocabulary, tied=tied),),
        others=() if width == d_model else (into, out),
        **_learn_positions(fields, heads, unused=OPT_OFFSET),
    )


def _read_bloom(fields: Fields, name: str) -> Model:
    heads = _gpt_heads(fields)
    layer = _build_layer(heads, d_ff=4 * heads.d_model, positions="alibi")
    # The second norm comes after the embedding.
    return _build(fields, name, layer, norms=layer.norms)


def _read_falcon(fields: Fields, name: str) -> Model:
    new = fields.flag("new_decoder_architecture", default=False)
    heads = _gpt_heads(fields)
    kv_count = fields.size("num_kv_heads", default=heads.count)
    if not new and fields.flag("multi_query", default=True):
        kv_count = 1
    elif not new and kv_count != heads.count:
        raise fields.refuse("num_kv_heads", f"{heads.count} (the number of query heads) or 1")
    parallel = new or fields.flag("parallel_attn", default=True)
    norms = fields.size("num_ln_in_parallel_attn", default=2 if new else 1) if parallel else 2
    if norms > 2:
        raise fields.refuse("num_ln_in_parallel_attn", "1 or 2")
    layer = _build_layer(
        replace(heads, kv_count=kv_count),
        d_ff=fields.size("ffn_hidden_size", default=4 * heads.d_model),
        bias=fields.flag("bias", default=False),
        norms=norms,
        positions="alibi" if fields.flag("alibi", default=False) else "rotary",
        rotation=read_rotation(fields),
    )
    shared = heads.count // kv_count
    note = f"transformers stores each KV head {shared} times, once for each query head of its group"
    return _build(fields, name, layer, notes=(note,) if new and shared > 1 else ())


def _read_phi(fields: Fields, name: str, *, parallel: bool) -> Model:
    """Return a Phi with parallel sublayers, or a Persimmon with sequential sublayers."""
    heads = _equal_heads(fields)
    if parallel:
        heads = replace(heads, kv_count=fields.size("num_key_value_heads", default=heads.count))
    layer = _build_layer(
        heads,
        d_ff=fields.size("intermediate_size"),
        norms=1 if parallel else 2,
        positions="rotary",
        rotation=read_rotation(fields, fraction=0.5),
    )
    if fields.flag("qk_layernorm", default=not parallel):
        head_norm = Norm(heads.d_model // heads.count, bias=True)
        layer = replace(layer, attention=replace(layer.attention, norms=(head_norm, head_norm)))
    return _build(fields, name, layer, tied=False, head_bias=parallel)


def _read_gptj(fields: Fields, name: str) -> Model:
    heads = _gpt_heads(fields)
    size = heads.d_model // heads.count
    layer = _build_layer(
        heads,
        d_ff=fields.size("n_inner", default=4 * heads.d_model),
        norms=1,
        positions="rotary",
        rotation=PositionConfig(rotary_fraction=fields.size("rotary_dim", default=size) / size),
        attention_bias=False,
    )
    return _build(fields, name, layer, tied=False, head_bias=True)


def _read_gpt_neo(fields: Fields, name: str) -> Model:
    heads, layers = _equal_heads(fields, heads=("num_heads",)), fields.layers("num_layers")
    window = fields.size("window_size", default=256)
    kinds = fields.words("attention_layers", choices=("global", "local"), length=layers)
    if kinds is None:
        raise fields.missing(("attention_layers",))

    def build(kind: str) -> Layer:
        d_ff = fields.size("intermediate_size", default=4 * heads.d_model)
        layer = _build_layer(heads, d_ff=d_ff, window=window if kind == "local" else None)
        return replace(layer, attention=replace(layer.attention, unbiased=("q", "k", "v")))

    return build_decoder(
        fields,
        name,
        build_each(kinds, build),
        tied=True,
        norms=(Norm(heads.d_model, bias=True),),
        notes=("transformers caches all tokens, even in layers with a window",),
        **_learn_positions(fields, heads),
    )


def _read_mpt(fields: Fields, name: str) -> Model:
    attention = fields.nested("attn_config")
    fields.allow({"no_bias": (True,)})
    attention.allow({"qk_ln": (False,)})
    heads = _equal_heads(fields, ("d_model",), ("n_heads",))
    if attention.text("attn_type", default="multihead_attention") != "multihead_attention":
        heads = replace(heads, kv_count=attention.size("kv_n_heads", default=1))
    has_alibi = attention.flag("alibi", default=True)
    layer = _build_layer(
        heads,
        d_ff=fields.size("expansion_ratio", default=4) * heads.d_model,
        bias=False,
        positions="alibi" if has_alibi else "none",
    )
    norm = Norm(heads.d_model)
    learned = _learn_positions(fields, heads)
    if has_alibi:
        learned["positions"] = ()
    return _build(fields, name, replace(layer, norms=(norm, norm)), **learned)


def _read_xglm(fields: Fields, name: str) -> Model:
    heads = _equal_heads(fields, ("d_model",), ("attention_heads",))
    return _build(fields, name, _build_layer(heads, d_ff=fields.size("ffn_dim")))


def _equal_heads(
    fields: Fields,
    width: tuple[str, ...] = ("hidden_size",),
    heads: tuple[str, ...] = ("num_attention_heads",),
) -> Heads:
    """Return the sizes of heads for a family in which each query head has its own KV head.

    ``width`` and ``heads`` are the names of the fields.
    """
    count, d_model = fields.size(*heads), fields.size(*width)
    if count > d_model:
        raise fields.refuse(heads[0], f"at most {d_model:,}")
    return Heads(d_model=d_model, count=count, kv_count=count)


def _gpt_heads(fields: Fields) -> Heads:
    widths = ("n_embd", "n_embed", "hidden_size")
    return _equal_heads(fields, widths, ("n_head", "num_attention_heads"))


def _learn_positions(fields: Fields, heads: Heads, *, unused: int = 0) -> dict[str, Any]:
    """Return the table of learned positions and the maximum context, as arguments of ``Model``."""
    tokens = fields.size("n_positions", "max_position_embeddings", "max_seq_len")
    return {"positions": (Table(tokens + unused, heads.d_model),), "max_tokens": tokens}


def _build_layer(
    heads: Heads,
    *,
    d_ff: int,
    bias: bool = True,
    attention_bias: bool = True,
    norms: int = 2,
    **attention: Any,
) -> Layer:
    """Return a block with LayerNorm. Further keywords are arguments of ``Heads.attend``."""
    has_bias = bias and attention_bias
    config = heads.attend(bias=has_bias, out_bias=has_bias, **attention)
    return Layer(
        attention=ProjectedAttention(config=config),
        feed_forward=(FeedForward(heads.d_model, d_ff, bias=bias),),
        norms=(Norm(heads.d_model, bias=True),) * norms,
    )


def _build(fields: Fields, name: str, layer: Layer, *, tied: bool = True, **others: Any) -> Model:
    """Return a model of identical layers. The default final norm is like a layer's first norm."""
    layers = (layer,) * fields.layers("n_layer", "num_hidden_layers", "n_layers", "num_layers")
    if "max_tokens" not in others:
        names = ("max_position_embeddings", "n_positions", "seq_length")
        others["max_tokens"] = fields.optional_size(*names)
    norms = others.pop("norms", layer.norms[:1])
    return build_decoder(fields, name, layers, tied=tied, norms=norms, **others)


READERS: Mapping[str, Reader] = {
    "openai-gpt": _read_gpt1,
    "gpt2": _read_gpt2,
    "ctrl": _read_ctrl,
    "biogpt": _read_biogpt,
    "gpt_neox_japanese": _read_japanese_neox,
    "opt": _read_opt,
    "bloom": _read_bloom,
    "falcon": _read_falcon,
    "phi": partial(_read_phi, parallel=True),
    "gptj": _read_gptj,
    "codegen": _read_gptj,
    "gpt_bigcode": partial(_read_gpt2, may_share_heads=True),
    "gpt_neo": _read_gpt_neo,
    "mpt": _read_mpt,
    "xglm": _read_xglm,
    "persimmon": partial(_read_phi, parallel=False),
}
