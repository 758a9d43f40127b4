"""Models in which most layers keep a state, such as Mamba, Nemotron H, RWKV 4 and xLSTM.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from qkvary.arch.blocks import Experts, FeedForward, Layer, RecurrentLayer
from qkvary.arch.families import recipes, recurrent
from qkvary.arch.families.attention_fields import build_decoder, build_each
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.recipes import Recipe
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm

MARKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""The type of a Nemotron H block, by its letter in published configurations."""


def _read_mamba(
    fields: Fields, name: str, *, mixer: Callable[[Fields], RecurrentLayer], tied: bool
) -> Model:
    layer = Layer(
        attention=mixer(fields),
        feed_forward=(),
        norms=(Norm(fields.size("hidden_size")),),
    )
    layers = (layer,) * fields.layers("num_hidden_layers", "n_layer")
    return build_decoder(fields, name, layers, tied=tied)


def _read_falcon_h1(fields: Fields, name: str) -> Model:
    """Return the model, with the parallel state and attention of a block as two layers."""
    recipe = Recipe(mlp_bias=("mlp_bias", False))
    model = recipes.read(recipe, fields, name)
    own = fields.replace(mamba_rms_norm=fields.flag("mamba_rms_norm", default=False))
    state = Layer(attention=recurrent.read_mamba2(own), feed_forward=(), norms=())
    layers = tuple(part for layer in model.layers for part in (state, layer))
    note = (
        "each block runs attention and Mamba-2 in parallel; the two are listed as separate layers"
    )
    return replace(model, layers=layers, notes=(*model.notes, note))


def _read_nemotron_h(fields: Fields, name: str) -> Model:
    pattern = fields.text("hybrid_override_pattern", default="")
    if pattern and set(pattern) - set(MARKS):
        raise fields.refuse("hybrid_override_pattern", f"marks from {' '.join(MARKS)}")
    listed = fields.items("layers_block_type") or tuple(MARKS[mark] for mark in pattern)
    if not listed:
        raise fields.missing(("layers_block_type", "hybrid_override_pattern"))
    known = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = tuple(known.get(str(kind), str(kind)) for kind in listed)
    if set(kinds) - set(MARKS.values()):
        raise fields.refuse("layers_block_type", f"words from {', '.join(MARKS.values())}")
    d_model, one = fields.size("hidden_size"), fields.replace(num_hidden_layers=1)
    norm = Norm(d_model)

    def build(kind: str) -> Layer:
        plain = Layer(
            attention=RecurrentLayer(kind="no attention", d_model=d_model),
            feed_forward=(),
            norms=(norm,),
        )
        if kind == "attention":
            whole = recipes.read(_ATTENTION, one, name).layers[0]
            return replace(plain, attention=whole.attention)
        if kind == "mamba":
            return replace(plain, attention=recurrent.read_mamba2(fields))
        if kind == "mlp":
            bias, inner = fields.flag("mlp_bias", default=False), fields.size("intermediate_size")
            return replace(plain, feed_forward=(FeedForward(d_model, inner, bias=bias),))
        return replace(plain, feed_forward=(_read_experts(fields),))

    return build_decoder(fields, name, build_each(kinds, build), tied=None)


_ATTENTION = Recipe(bias=False, windows="none")


def _read_experts(fields: Fields) -> Experts:
    d_model, count = fields.size("hidden_size"), fields.size("n_routed_experts")
    shared = fields.count("n_shared_experts") and fields.size("moe_shared_expert_intermediate_size")
    return Experts(
        expert=FeedForward(d_model, fields.size("moe_intermediate_size")),
        count=count,
        active=fields.size("num_experts_per_tok"),
        shared=FeedForward(d_model, shared, bias=fields.flag("mlp_bias", default=False))
        if shared
        else None,
        router=Linear(d_model, count),
    )


def _read_recurrent_gemma(fields: Fields, name: str) -> Model:
    names = {"recurrent": "recurrent", "attention": recipes.LOCAL}
    listed = fields.items("block_types") or ("recurrent", "recurrent", "attention")
    if not set(listed) <= set(names):
        raise fields.refuse("block_types", f"words from {', '.join(names)}")
    count = fields.layers("num_hidden_layers")
    types = [names[str(listed[index % len(listed)])] for index in range(count)]
    inner = fields.size("intermediate_size")
    if inner % 2:
        raise fields.refuse(
            "intermediate_size", "an even number, because each matrix has half the width"
        )
    given = fields.replace(
        layer_types=types,
        sliding_window=fields.size("attention_window_size", "sliding_window", default=2048),
        intermediate_size=inner // 2,
    )
    return replace(recipes.read(_RECURRENT_GEMMA, given, name), max_tokens=None)


_RECURRENT_GEMMA = Recipe(
    out_bias=True,
    needs_types=True,
    recurrent={"recurrent": recurrent.read_gated_recurrence},
    mlp_bias=True,
    tied=True,
    rotary_share=0.5,
    ignored=("head_dim",),
)


def _read_rwkv(fields: Fields, name: str) -> Model:
    d_model = fields.size("hidden_size")
    norm = Norm(d_model, bias=True)
    inner = fields.size("intermediate_size", default=4 * d_model)
    layer = Layer(
        attention=recurrent.read_time_mixing(fields),
        feed_forward=(FeedForward(d_model, inner),),
        norms=(norm, norm),
        # The gate of channel mixing.
        others=(Linear(d_model, d_model),),
    )
    layers = (layer,) * fields.layers("num_hidden_layers")
    # One more norm comes after the embedding.
    return build_decoder(fields, name, layers, tied=False, norms=(norm, norm))


def _read_xlstm(fields: Fields, name: str) -> Model:
    d_model, bias = fields.size("hidden_size"), fields.flag("use_bias", default=False)
    multiple = fields.size("ffn_round_up_to_multiple_of", default=64)
    inner = recurrent.round_up(d_model * fields.number("ffn_proj_factor", default=2.667), multiple)
    norm = Norm(d_model, bias=bias)
    layer = Layer(
        attention=recurrent.read_matrix_memory(fields),
        feed_forward=(FeedForward(d_model, inner, gated=True, bias=bias),),
        norms=(norm, norm),
    )
    layers = (layer,) * fields.layers("num_hidden_layers", "num_blocks")
    norms = (Norm(d_model),) if fields.flag("add_out_norm", default=True) else ()
    return build_decoder(fields, name, layers, tied=None, norms=norms)


READERS: Mapping[str, Reader] = {
    "mamba": partial(_read_mamba, mixer=recurrent.read_mamba, tied=True),
    "falcon_mamba": partial(_read_mamba, mixer=recurrent.read_mamba, tied=True),
    "mamba2": partial(_read_mamba, mixer=recurrent.read_mamba2, tied=False),
    "falcon_h1": _read_falcon_h1,
    "nemotron_h": _read_nemotron_h,
    "recurrent_gemma": _read_recurrent_gemma,
    "rwkv": _read_rwkv,
    "xlstm": _read_xlstm,
}
