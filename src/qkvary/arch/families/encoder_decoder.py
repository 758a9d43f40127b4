"""Encoder-decoders: T5 and Whisper.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import Heads, build_decoder
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.models import Encoder, Model
from qkvary.arch.parts import Linear, Norm, Table

KERNEL = 3
"""Width in frames of the convolutions in Whisper's stem."""


def _read_t5(fields: Fields, name: str) -> Model:
    count, d_model = fields.size("num_heads"), fields.size("d_model")
    encoder_layers = fields.layers("num_layers")
    decoder_layers = fields.layers("num_decoder_layers", "num_layers")
    # The first layer of a stack has the table of relative positions that all its layers read.
    buckets = fields.size("relative_attention_num_buckets", default=32) * count
    feed_forward, norm = _read_t5_forward(fields), Norm(d_model)
    heads = Heads(d_model=d_model, count=count, kv_count=count, dim=fields.size("d_kv"))
    causal = heads.attend()
    every = replace(causal, causal=False)

    def build(config: AttentionConfig, entries: int) -> Layer:
        return Layer(
            attention=ProjectedAttention(config=config, entries=entries),
            feed_forward=(feed_forward,),
            norms=(norm, norm),
        )

    def build_crossing(entries: int) -> Layer:
        crossing = ProjectedAttention(config=every)
        return replace(build(causal, entries), norms=(norm,) * 3, cross=crossing)

    return build_decoder(
        fields,
        name,
        (build_crossing(buckets), *(build_crossing(0),) * (decoder_layers - 1)),
        tied=True,
        max_tokens=None,
        encoder=Encoder(
            layers=(build(every, buckets), *(build(every, 0),) * (encoder_layers - 1)),
            norms=(norm,),
        ),
    )


def _read_t5_forward(fields: Fields) -> FeedForward:
    kind, *activation = fields.text("feed_forward_proj", default="relu").rsplit("-", 1)
    if activation and kind != "gated":
        raise fields.refuse("feed_forward_proj", "an activation such as relu or gated-gelu")
    return FeedForward(fields.size("d_model"), fields.size("d_ff"), gated=bool(activation))


def _read_whisper(fields: Fields, name: str) -> Model:
    d_model = fields.size("d_model")
    tokens, heard = fields.size("max_target_positions"), fields.size("max_source_positions")
    norm = Norm(d_model, bias=True)
    causal = _attend(d_model, fields.size("decoder_attention_heads"))
    decoder_layer = Layer(
        attention=ProjectedAttention(config=causal, unbiased=("k",)),
        feed_forward=(_forward(fields, "decoder_ffn_dim"),),
        norms=(norm,) * 3,
        cross=ProjectedAttention(config=replace(causal, causal=False), unbiased=("k",)),
    )
    seeing = replace(_attend(d_model, fields.size("encoder_attention_heads")), causal=False)
    encoder_layer = Layer(
        attention=ProjectedAttention(config=seeing, unbiased=("k",)),
        feed_forward=(_forward(fields, "encoder_ffn_dim"),),
        norms=(norm, norm),
    )
    return build_decoder(
        fields,
        name,
        (decoder_layer,) * fields.layers("decoder_layers"),
        tied=True,
        positions=(Table(tokens, d_model),),
        norms=(norm,),
        encoder=Encoder(
            layers=(encoder_layer,) * fields.layers("encoder_layers"),
            norms=(norm,),
            tokens=heard,
            stem=_read_stem(fields),
            # Sinusoids, stored with the weights.
            positions=(Table(heard, d_model),),
        ),
        max_tokens=tokens,
    )


def _read_stem(fields: Fields) -> tuple[Linear, ...]:
    """Return two convolutions; the second merges two frames into one token."""
    d_model, bins = fields.size("d_model"), fields.size("num_mel_bins")
    frame = Linear(KERNEL * bins, d_model, bias=True)
    # The token's second frame passes through the same matrix.
    other = Linear(frame.inputs, d_model, tied=True)
    return (frame, other, Linear(KERNEL * d_model, d_model, bias=True))


def _attend(d_model: int, heads: int) -> AttentionConfig:
    return Heads(d_model=d_model, count=heads, kv_count=heads).attend(bias=True, out_bias=True)


def _forward(fields: Fields, width: str) -> FeedForward:
    return FeedForward(fields.size("d_model"), fields.size(width), bias=True)


READERS: Mapping[str, Reader] = {
    "t5": _read_t5,
    "whisper": _read_whisper,
}
