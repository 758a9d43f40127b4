"""Gemma 3n: several residual streams, inputs per layer, and layers that read another's cache.

Source: the configuration and modelling files of transformers 5.23.0.
"""

from collections.abc import Mapping, Sequence

from qkvary.arch.blocks import FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import LAYER_TYPES, build_decoder, build_each
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.families.gemma import find_sources
from qkvary.arch.families.recipes import (
    AttentionRecipe,
    Kind,
    LayerKinds,
    Recipe,
    Rotary,
    read_head_config,
)
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm, Table

GLOBAL, LOCAL = LAYER_TYPES
PERIOD = 5
"""Every n-th layer is global by default."""
WINDOW = 512
"""The window if a configuration omits it."""
STREAMS = 4
"""Number of residual streams if a configuration omits it."""

_RECIPE = Recipe(
    attention=AttentionRecipe(head_dim=256),
    kinds=LayerKinds(window=WINDOW),
    rotary=Rotary(base=1_000_000.0, local_base=("rope_local_base_freq", 10_000.0)),
)


def _read_gemma3n(fields: Fields, name: str) -> Model:
    d_model, layers = fields.size("hidden_size"), fields.layers("num_hidden_layers")
    types = _read_types(fields, layers)
    shared = fields.count("num_kv_shared_layers", default=15)
    sources = find_sources(fields.replace(num_kv_shared_layers=shared), types)
    window = fields.size("sliding_window", default=WINDOW)
    widths = _read_widths(fields, layers)
    width = fields.size("hidden_size_per_layer_input", default=256)
    others, norms = _read_streams(fields, d_model, width)
    streams = fields.size("altup_num_inputs", default=STREAMS)

    def build(one: tuple[str, int | None, int]) -> Layer:
        mixing, source, d_ff = one
        kind = Kind(mixing, window if mixing == LOCAL else None, sparse=False)
        config = read_head_config(_RECIPE, fields, kind)
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


def _read_types(fields: Fields, layers: int) -> Sequence[str]:
    usual = [GLOBAL if (index + 1) % PERIOD == 0 else LOCAL for index in range(layers)]
    return fields.words("layer_types", choices=LAYER_TYPES, length=layers) or usual


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
    """Return what a layer has besides Gemma's: streams, a low-rank connection, its input."""
    streams = fields.size("altup_num_inputs", default=STREAMS)
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


READERS: Mapping[str, Reader] = {"gemma3n_text": _read_gemma3n}
