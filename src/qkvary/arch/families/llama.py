"""Llama 1 to 3, Mistral, Mixtral, Qwen 2, 2.5 and 3, Phi 3 and 4.

They have rotary positions, RMSNorm and gated feed-forward networks.

Source: the configuration and modelling files of transformers 5.23.0 for each ``model_type``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkvary.arch.blocks import Experts, FeedForward, Layer, ProjectedAttention
from qkvary.arch.families.attention_fields import Heads, build_each, read_rotation, read_windows
from qkvary.arch.families.fields import Fields, Reader
from qkvary.arch.models import Model
from qkvary.arch.parts import Linear, Norm, Table

ROTARY_BASE = 10_000.0
"""Base of the rotary frequencies, where a configuration does not say."""
MIXTRAL_BASE = 1_000_000.0
"""The base of Mixtral, where a configuration does not say."""
QWEN_WINDOW = 4096
"""The window of Qwen configurations that switch it on without saying how long it is."""
QWEN_FULL_LAYERS = 28
"""The layers before the first one with a window, where such a configuration does not say."""
MISTRAL_WINDOW = 4096
"""The window of Mistral configurations that do not mention one; a null switches it off."""
QWEN3_HEAD_DIM = 128
"""Channels of a head where a Qwen3 configuration does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attention:
    """The differences between the families' attention layers."""

    heads: Heads
    """Sizes."""
    windows: Sequence[int | None]
    """The window of each layer."""
    bias: bool = False
    """Biases on the input projections."""
    out_bias: bool = False
    """Bias on the output projection."""
    normed: bool = False
    """Whether the heads of queries and keys are normalised."""


def _read_llama(fields: Fields, name: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = _Attention(
        heads=_read_heads(fields, optional=True),
        windows=(None,) * fields.layers("num_hidden_layers"),
        bias=bias,
        out_bias=bias,
    )
    return _build(
        fields, name, attention, _dense(fields, bias=fields.flag("mlp_bias", default=False))
    )


def _read_mistral(fields: Fields, name: str) -> Model:
    window = fields.optional_size("sliding_window")
    if not fields.mentions("sliding_window"):
        window = MISTRAL_WINDOW
    return _build(fields, name, _windowed(fields, window), _dense(fields))


def _read_mixtral(fields: Fields, name: str) -> Model:
    window = fields.optional_size("sliding_window")
    experts = _experts(fields, fields.size("intermediate_size"), "num_local_experts", "num_experts")
    return _build(fields, name, _windowed(fields, window), experts, base=MIXTRAL_BASE)


def _read_phi3(fields: Fields, name: str) -> Model:
    attention = _Attention(
        heads=_read_heads(fields, optional=True),
        windows=read_windows(
            fields, fields.layers("num_hidden_layers"), fields.optional_size("sliding_window")
        ),
    )
    return _build(fields, name, attention, _dense(fields))


def _read_qwen2(fields: Fields, name: str) -> Model:
    heads = _read_heads(fields)
    attention = _Attention(heads=heads, windows=_qwen_windows(fields), bias=True)
    return _build(fields, name, attention, _dense(fields))


def _read_qwen3(fields: Fields, name: str) -> Model:
    bias = fields.flag("attention_bias", default=False)
    attention = _Attention(
        heads=_read_heads(fields, dim=QWEN3_HEAD_DIM),
        windows=_qwen_windows(fields),
        bias=bias,
        out_bias=bias,
        normed=True,
    )
    return _build(fields, name, attention, _dense(fields))


def _read_qwen3_moe(fields: Fields, name: str) -> Model:
    layers = fields.layers("num_hidden_layers")
    bias = fields.flag("attention_bias", default=False)
    attention = _Attention(
        heads=_read_heads(fields),
        windows=read_windows(fields, layers, _qwen_window(fields)),
        bias=bias,
        out_bias=bias,
        normed=True,
    )
    step = fields.size("decoder_sparse_step", default=1)
    dense = fields.numbers("mlp_only_layers") or frozenset()
    sparse = [(index + 1) % step == 0 and index not in dense for index in range(layers)]
    return _build(
        fields,
        name,
        attention,
        *build_each(sparse, lambda routed: _routed(fields) if routed else _dense(fields)),
    )


def _routed(fields: Fields) -> Experts:
    width = fields.size("moe_intermediate_size")
    return _experts(fields, width, "num_experts", "num_local_experts")


def _read_heads(fields: Fields, *, optional: bool = False, dim: int | None = None) -> Heads:
    """Sizes of the heads.

    Args:
        fields: The configuration.
        optional: Whether published files may leave out the number of KV heads, which is then that
            of the query heads. In other families only a null means that.
        dim: Channels of a head where the configuration does not say.
    """
    count = fields.size("num_attention_heads")
    may_lack = optional or fields.mentions("num_key_value_heads")
    return Heads(
        d_model=fields.size("hidden_size"),
        count=count,
        kv_count=fields.size("num_key_value_heads", default=count if may_lack else None),
        dim=fields.optional_size("head_dim") or dim,
    )


def _windowed(fields: Fields, window: int | None) -> _Attention:
    layers = fields.layers("num_hidden_layers")
    return _Attention(heads=_read_heads(fields), windows=read_windows(fields, layers, window))


def _qwen_window(fields: Fields) -> int | None:
    if not fields.flag("use_sliding_window", default=False):
        return None
    window = fields.optional_size("sliding_window")
    return window if fields.mentions("sliding_window") else QWEN_WINDOW


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    layers, window = fields.layers("num_hidden_layers"), _qwen_window(fields)
    if fields.has("layer_types"):
        return read_windows(fields, layers, window)
    full = min(layers, fields.count("max_window_layers", default=QWEN_FULL_LAYERS))
    return (None,) * full + (window,) * (layers - full)


def _dense(fields: Fields, *, bias: bool = False) -> FeedForward:
    return FeedForward(
        d_model=fields.size("hidden_size"),
        d_ff=fields.size("intermediate_size"),
        gated=True,
        bias=bias,
    )


def _experts(fields: Fields, width: int, *count_names: str) -> Experts:
    d_model, count = fields.size("hidden_size"), fields.size(*count_names)
    return Experts(
        expert=FeedForward(d_model=d_model, d_ff=width, gated=True),
        count=count,
        active=fields.size("num_experts_per_tok"),
        router=Linear(inputs=d_model, outputs=count),
    )


def _build(
    fields: Fields,
    name: str,
    attention: _Attention,
    *networks: FeedForward | Experts,
    base: float = ROTARY_BASE,
) -> Model:
    """Return the model with these layers; one network is that of all."""
    d_model, rotation = attention.heads.d_model, read_rotation(fields, base=base)
    norm = Norm(width=d_model)

    def build_layer(kind: tuple[int | None, FeedForward | Experts]) -> Layer:
        window, network = kind
        config = attention.heads.attend(
            window=window,
            positions="rotary",
            rotation=rotation,
            bias=attention.bias,
            out_bias=attention.out_bias,
        )
        norms = (Norm(width=config.size_per_head),) * 2 if attention.normed else ()
        return Layer(
            attention=ProjectedAttention(config=config, norms=norms),
            feed_forward=(network,),
            norms=(norm, norm),
        )

    each = networks * len(attention.windows) if len(networks) == 1 else networks
    kinds = tuple(zip(attention.windows, each, strict=True))
    vocabulary = fields.size("vocab_size")
    tied = fields.flag("tie_word_embeddings", default=False)
    return Model(
        name=name,
        layers=build_each(kinds, build_layer),
        vocabulary=vocabulary,
        tables=(Table(rows=vocabulary, width=d_model),),
        norms=(norm,),
        head=(Linear(inputs=d_model, outputs=vocabulary, tied=tied),),
        max_tokens=fields.optional_size("max_position_embeddings"),
    )


READERS: Mapping[str, Reader] = {
    "llama": _read_llama,
    "mistral": _read_mistral,
    "mixtral": _read_mixtral,
    "qwen2": _read_qwen2,
    "qwen3": _read_qwen3,
    "qwen3_moe": _read_qwen3_moe,
    "phi3": _read_phi3,
}
