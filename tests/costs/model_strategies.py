"""Random models for hypothesis: every kind of block, any sharing, layers that read others' caches.

Small enough to be counted by plain loops. Rows that are stored have at least five channels, from
where on a quantised format with groups of 64 is smaller than one of 16 bits.
"""

import dataclasses

from hypothesis import strategies as st

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.blocks import (
    AttentionLayer,
    CompressedAttention,
    Compressor,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
    Storage,
)
from qkvary.arch.models import Encoder, Model
from qkvary.arch.parts import Linear, Norm, Table
from qkvary.arch.sharing import SHARINGS
from qkvary.arch.variants import Rank, Variant

FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "int8-g3", "int4-g5")
"""Formats of a cache, with groups that rows do not fill."""

CONTEXTS = st.integers(1, 23)
"""Tokens, up to several windows and summaries."""

HEAD_DIMS = st.sampled_from([5, 6, 7, 8])
BOOLEANS = st.booleans()
WINDOWS = st.integers(1, 9)
RANKS = st.builds(Rank, st.integers(1, 4)) | st.builds(Rank, st.just(2), of_width=st.just(True))

FIELDS = {
    "query_form": st.sampled_from(["plain", "residual", "map"]),
    "num_kv_heads": st.integers(1, 3),
    "k_rank": RANKS,
    "v_rank": RANKS,
    "plus": BOOLEANS,
    "positions": st.sampled_from(["none", "relative", "alibi", "rotary"]),
    "decoupled": st.sampled_from([2, 6]),
    "kv_norm": BOOLEANS,
    "head_norm": st.sampled_from(["none", "qk-norm", "qk-norm-wide"]),
    "latent": st.integers(1, 9),
    "window": WINDOWS,
    "diagonal": st.sampled_from(["none", "mean", "norm"]),
}
"""What a variant may have besides its sharing; products without a meaning are left out."""

POSITIONS = st.builds(
    PositionConfig,
    plus_features=st.integers(1, 11),
    plus_per_head=BOOLEANS,
    relative_distance=st.integers(1, 5),
)


@st.composite
def configs(
    draw: st.DrawFn, *, d_model: int, heads: int, without: tuple[str, ...] = (), causal: bool = True
) -> AttentionConfig:
    """An attention layer of any variant, less the fields named in ``without``."""
    wanted = {name: field for name, field in FIELDS.items() if name not in without}
    config = AttentionConfig(
        d_model=d_model,
        num_heads=heads,
        variant=Variant(sharing=draw(st.sampled_from(SHARINGS))),
        causal=causal,
        bias=draw(BOOLEANS),
        out_bias=draw(BOOLEANS),
        position=draw(POSITIONS),
    )
    for name, value in draw(st.fixed_dictionaries({}, optional=wanted)).items():
        try:
            variant = dataclasses.replace(config.variant, **{name: value})
            config = dataclasses.replace(config, variant=variant)
        except ValueError:
            # Refused by the configuration: a product without meaning (tests/arch holds which).
            continue
    if config.variant.identity_roles or draw(BOOLEANS):
        return config
    return dataclasses.replace(config, head_dim=draw(HEAD_DIMS))


@st.composite
def projected(
    draw: st.DrawFn, *, d_model: int, heads: int, without: tuple[str, ...] = (), causal: bool = True
) -> ProjectedAttention:
    """Attention with projections."""
    config = draw(configs(d_model=d_model, heads=heads, without=without, causal=causal))
    norms = (Norm(width=config.size_per_head),) if draw(BOOLEANS) else ()
    sources = config.variant.projections
    unbiased = draw(st.sets(st.sampled_from(sources))) if sources else set[str]()
    return ProjectedAttention(
        config=config,
        norms=norms,
        unbiased=tuple(sorted(unbiased)),  # type: ignore[arg-type]
        entries=draw(st.integers(0, 3)),
    )


def _stored_otherwise(attention: ProjectedAttention, *, crossing: bool) -> list[ProjectedAttention]:
    """Every way to store what a later token needs."""
    variant = attention.config.variant
    if len(variant.sharing.cached) == 1:
        # Whoever rotates what is stored may also keep the value and the rotated channels.
        rotary = variant.positions == "rotary"
        ways: list[Storage] = ["both", "value and slice"] if rotary else ["both"]
    else:
        ways = ["both", "input"] if "x" in variant.cached else ["both", "input", "keys"]
    narrow = any(attention.config.latent(source) is not None for source in variant.cached)
    ways += ["latent"] if narrow else []
    ways += ["input elsewhere"] if crossing else []
    return [dataclasses.replace(attention, storage=way) for way in ("needed", *ways)]


def latent(d_model: int) -> st.SearchStrategy[LatentAttention]:
    """Latent attention with widths that are all drawn by themselves."""
    return st.builds(
        LatentAttention,
        d_model=st.just(d_model),
        num_heads=st.integers(1, 4),
        q_rank=st.none() | st.integers(1, 9),
        kv_rank=st.integers(5, 70),
        nope_dim=st.integers(1, 9),
        rope_dim=st.integers(5, 9),
        value_dim=st.integers(1, 9),
        bias=BOOLEANS,
    )


@st.composite
def compressed(draw: st.DrawFn, *, d_model: int) -> CompressedAttention:
    """A window alone, with summaries, or with summaries that an indexer picks."""
    parts, rate = draw(st.integers(0, 2)), draw(st.integers(1, 7))
    head_dim, index_dim = draw(HEAD_DIMS), draw(st.integers(5, 9))
    compressors = [
        Compressor(width=width, rate=rate, overlapping=draw(BOOLEANS))
        for width in (head_dim, index_dim)[:parts]
    ]
    groups = draw(st.sampled_from([1, 2]))
    return CompressedAttention(
        d_model=d_model,
        num_heads=2 * draw(st.integers(1, 2)),
        head_dim=head_dim,
        q_rank=draw(st.integers(1, 5)),
        o_groups=groups,
        o_rank=draw(st.integers(1, 5)),
        window=draw(WINDOWS),
        compressor=compressors[0] if parts else None,
        indexer=compressors[1] if parts == 2 else None,
        index_heads=draw(st.integers(1, 3)) if parts == 2 else 0,
        index_top=draw(st.integers(1, 5)) if parts == 2 else 0,
    )


def feed_forwards(d_model: int) -> st.SearchStrategy[tuple[FeedForward | Experts, ...]]:
    """Dense networks and mixtures, alone or side by side."""
    dense = st.builds(
        FeedForward,
        d_model=st.just(d_model),
        d_ff=st.integers(1, 9),
        gated=BOOLEANS,
        bias=BOOLEANS,
    )
    sparse = st.integers(1, 5).flatmap(
        lambda count: st.builds(
            Experts,
            expert=dense,
            count=st.just(count),
            active=st.integers(1, count),
            shared=st.none() | dense,
            router=st.none() | st.just(Linear(inputs=d_model, outputs=count)),
            entries=st.integers(0, 3),
        )
    )
    return st.lists(dense | sparse, min_size=1, max_size=2).map(tuple)


@st.composite
def around(
    draw: st.DrawFn,
    attention: AttentionLayer,
    *,
    d_model: int,
    cross: ProjectedAttention | None = None,
) -> Layer:
    """A block with everything that stands around its attention."""
    return Layer(
        attention=attention,
        feed_forward=draw(feed_forwards(d_model)),
        norms=(Norm(width=d_model), Norm(width=d_model, bias=True)),
        cross=cross,
        others=draw(st.sampled_from([(), (Linear(inputs=d_model, outputs=3, bias=True),)])),
        entries=draw(st.integers(0, 3)),
        products=draw(st.integers(0, 3)),
    )


KINDS = ("projected", "latent", "compressed", "reader")
"""Attention with projections, of two other kinds, or one that reads an earlier layer."""


@st.composite
def models(
    draw: st.DrawFn,
    *,
    kinds: tuple[str, ...] = KINDS,
    without: tuple[str, ...] = (),
    encoders: bool = True,
    storages: bool = False,
    max_layers: int = 5,
) -> Model:
    """A whole model.

    Args:
        draw: From hypothesis.
        kinds: What attention may be.
        without: Fields of a variant that no layer of the decoder has.
        encoders: Whether there may be an encoder, and cross attention to it.
        storages: Whether caches may hold something else than what keys and values need.
        max_layers: The most layers.
    """
    heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    d_model = heads * draw(HEAD_DIMS)
    encoder = draw(st.none() | _encoders(d_model, heads)) if encoders else None
    layers: list[Layer] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=max_layers)):
        attention = _draw_attention(draw, kind, layers, d_model, heads, without)
        crossing = projected(
            d_model=d_model, heads=heads, without=(*without, "window"), causal=False
        )
        cross = draw(st.none() | crossing) if encoder else None
        if storages and isinstance(attention, ProjectedAttention) and attention.reads_layer is None:
            attention = draw(st.sampled_from(_stored_otherwise(attention, crossing=False)))
        if storages and cross is not None:
            cross = draw(st.sampled_from(_stored_otherwise(cross, crossing=True)))
        layer = draw(around(attention, d_model=d_model, cross=cross))
        # One value may stand in many places, and is then looked at once.
        layers += [layer] * draw(st.integers(1, 3))
    vocabulary, tied = draw(st.integers(1, 29)), draw(BOOLEANS)
    head = Linear(inputs=d_model, outputs=vocabulary, bias=draw(BOOLEANS), tied=tied)
    return Model(
        name="drawn",
        layers=tuple(layers),
        vocabulary=vocabulary,
        tables=(Table(rows=vocabulary, width=d_model),),
        positions=draw(st.sampled_from([(), (Table(rows=31, width=d_model),)])),
        norms=(Norm(width=d_model),),
        head=(head,),
        others=draw(st.sampled_from([(), (Linear(inputs=d_model, outputs=2),)])),
        encoder=encoder,
    )


def _draw_attention(
    draw: st.DrawFn,
    kind: str,
    before: list[Layer],
    d_model: int,
    heads: int,
    without: tuple[str, ...],
) -> AttentionLayer:
    if kind == "latent":
        return draw(latent(d_model))
    if kind == "compressed":
        return draw(compressed(d_model=d_model))
    sources = [index for index, layer in enumerate(before) if _can_be_read(layer.attention)]
    if kind == "reader" and sources:
        index = draw(st.sampled_from(sources))
        read = before[index].attention
        assert isinstance(read, ProjectedAttention)
        return dataclasses.replace(read, reads_layer=index)
    return draw(projected(d_model=d_model, heads=heads, without=without))


def _can_be_read(attention: AttentionLayer) -> bool:
    """Whether it keeps separate keys and values and makes queries of something else."""
    if not isinstance(attention, ProjectedAttention) or attention.reads_layer is not None:
        return False
    if attention.storage != "needed":
        return False
    sharing = attention.config.variant.sharing
    return sharing.query not in (sharing.key, sharing.value)


@st.composite
def _encoders(draw: st.DrawFn, d_model: int, heads: int) -> Encoder:
    stack = projected(d_model=d_model, heads=heads, causal=False)
    return Encoder(
        layers=tuple(
            draw(around(draw(stack), d_model=d_model)) for _ in range(draw(st.integers(1, 2)))
        ),
        norms=(Norm(width=d_model),),
        tokens=draw(st.none() | st.integers(1, 7)),
        stem=draw(st.sampled_from([(), (Linear(inputs=3, outputs=d_model, bias=True),)])),
        positions=draw(st.sampled_from([(), (Table(rows=11, width=d_model),)])),
    )
