"""Models of every kind of layer, small enough to count by hand; sizes are distinct."""

import dataclasses

from qkvary.arch.attention import AttentionConfig, PositionConfig
from qkvary.arch.blocks import (
    CompressedAttention,
    Compressor,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    ProjectedAttention,
)
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import Encoder, Model, as_model
from qkvary.arch.parts import Linear, Norm, Table
from tests.small_networks import small_config

VOCABULARY = 101


def language_model(label: str = "QKV", *, d_model: int = 48, num_layers: int = 3) -> Model:
    """A plain decoder: biases, LayerNorm, two matrices in the feed-forward network, a tied head."""
    sizes = {"d_model": d_model, "num_heads": 8, "d_ff": 5 * d_model, "num_layers": num_layers}
    texts = {"vocabulary": VOCABULARY, "max_tokens": 37, "positions": "learned"}
    return as_model(small_config(label, **sizes, **texts), name=f"toy {label}")


def stack(*layers: Layer, encoder: Encoder | None = None, name: str = "toy") -> Model:
    """A model of any layers, with an untied head."""
    width = 24
    return Model(
        name=name,
        layers=layers,
        vocabulary=VOCABULARY,
        tables=(Table(rows=VOCABULARY, width=width),),
        norms=(Norm(width=width),),
        head=(Linear(inputs=width, outputs=VOCABULARY),),
        encoder=encoder,
    )


def projected(
    label: str = "QKV", *, position: PositionConfig | None = None, **fields: object
) -> ProjectedAttention:
    """Attention of six heads over 24 channels, without biases."""
    given: dict[str, object] = {"d_model": 24, "num_heads": 6, **fields}
    return ProjectedAttention(
        config=AttentionConfig(
            variant=parse_variant(label),
            causal=True,
            bias=False,
            out_bias=False,
            position=position or PositionConfig(),
            **given,  # type: ignore[arg-type]
        )
    )


def plain_layer(
    attention: ProjectedAttention | LatentAttention | CompressedAttention,
    *,
    cross: ProjectedAttention | None = None,
) -> Layer:
    """A block with two norms and a gated feed-forward network of 50 channels."""
    return Layer(
        attention=attention,
        cross=cross,
        feed_forward=(FeedForward(d_model=24, d_ff=50, gated=True),),
        norms=(Norm(width=24),) * (2 if cross is None else 3),
    )


def latent_model(num_layers: int = 2) -> Model:
    """Multi-head latent attention."""
    layer = plain_layer(
        LatentAttention(
            d_model=24, num_heads=6, q_rank=10, kv_rank=14, nope_dim=5, rope_dim=4, value_dim=7
        )
    )
    return stack(*(layer,) * num_layers, name="latent")


def compressed_model() -> Model:
    """A layer with a window only, one with summaries, one that picks a few of them."""
    attention = CompressedAttention(
        d_model=24, num_heads=6, head_dim=8, q_rank=10, o_groups=2, o_rank=9, window=5
    )
    summaries = Compressor(width=8, rate=4, overlapping=True)
    layers = (
        attention,
        dataclasses.replace(attention, compressor=Compressor(width=8, rate=7, overlapping=False)),
        dataclasses.replace(
            attention,
            compressor=summaries,
            indexer=dataclasses.replace(summaries, width=3),
            index_heads=2,
            index_top=3,
        ),
    )
    return stack(*map(plain_layer, layers), name="compressed")


def experts_model(*, count: int = 11, active: int = 3) -> Model:
    """A mixture of experts with a shared one."""
    feed_forward = Experts(
        expert=FeedForward(d_model=24, d_ff=13, gated=True),
        count=count,
        active=active,
        shared=FeedForward(d_model=24, d_ff=17, gated=True),
        router=Linear(inputs=24, outputs=count),
    )
    layer = dataclasses.replace(plain_layer(projected()), feed_forward=(feed_forward,))
    return stack(layer, layer, name="experts")


def encoder_decoder_model(label: str = "QKV", *, tokens: int | None = None) -> Model:
    """Two layers of cross attention over an encoder of one layer."""
    seeing = projected()
    seeing = dataclasses.replace(seeing, config=dataclasses.replace(seeing.config, causal=False))
    layer = plain_layer(projected(), cross=seeing)
    encoder = Encoder(layers=(plain_layer(seeing),), norms=(Norm(width=24),), tokens=tokens)
    return stack(layer, layer, encoder=encoder, name="encoder-decoder").with_variant(
        parse_variant(label)
    )


def tied_rotary_model(*, window: int = 6, storage: str = "both") -> Model:
    """Five layers with a window, and one where the value is the un-rotated key, as in Gemma 4."""
    local = projected("GQA-3@rotary", head_dim=8)
    variant = dataclasses.replace(local.config.variant, window=window)
    local = dataclasses.replace(local, config=dataclasses.replace(local.config, variant=variant))
    tied = projected(
        "Q-GQA-2@rotary",
        head_dim=16,
        position=PositionConfig(value_rope="none", rotary_fraction=0.25),
    )
    tied = dataclasses.replace(tied, storage=storage)
    return stack(*(plain_layer(local),) * 5, plain_layer(tied), name="tied")


ALL_KINDS = (
    language_model(),
    language_model("MQA"),
    language_model("Q-GQA-2"),
    language_model("QKV@w5"),
    latent_model(),
    compressed_model(),
    experts_model(),
    encoder_decoder_model(),
    encoder_decoder_model("Q-K=V", tokens=19),
    tied_rotary_model(),
)
"""One of each."""
