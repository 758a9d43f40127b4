"""The options that planning commands share: the model, its variants, formats and units."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from qkvary.arch.blocks import CompressedAttention, LatentAttention, Layer
from qkvary.arch.families.sizes import name_sizes
from qkvary.arch.labels import format_label
from qkvary.arch.models import Model, count_kinds
from qkvary.cli._options import complete_variant, convert_positive
from qkvary.costs.candidates import Candidates
from qkvary.costs.formats import Format, parse_format
from qkvary.data.checkpoint_names import packaged_names
from qkvary.data.model_configs import resolve_model

LONGEST_DEFAULT = 8192
"""The maximum of the default context."""


def complete_model(_context: object) -> Sequence[str]:
    """Return the names of models, for the shell."""
    return (*name_sizes(), *packaged_names())


ModelName = Annotated[
    str,
    Parameter(
        help="A named size (gpt2, llama-3.1-8b, 300M), a config.json or its folder, or a hub id.",
        completer=complete_model,
    ),
]
VariantLabels = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--variant", "--variants"),
        negative=(),
        consume_multiple=(1, None),
        help="Compare these variants, in any spelling (Q-K=V, q,k=v, MQA).",
        completer=complete_variant,
    ),
]
Context = Annotated[
    int | None,
    Parameter(
        name="--context",
        converter=convert_positive,
        help="Tokens per sequence: 2048, 32k (32,768), 1M. The model's maximum, at most 8k.",
    ),
]
EncoderTokens = Annotated[
    int | None,
    Parameter(
        name="--encoder-tokens",
        converter=convert_positive,
        help="Tokens that an encoder reads; as many as --context if not given.",
    ),
]
WeightFormat = Annotated[
    str, Parameter(name="--weights", help="Format of the weights: fp32, bf16, fp8, int8, int4.")
]
Decimal = Annotated[
    bool,
    Parameter(
        name="--decimal", negative=(), help="Print kB, MB and GB (10^3 ...), not KiB, MiB, GiB."
    ),
]


def find_model(reference: str) -> Model:
    """Return the model of a reference; downloads are cached.

    Raises:
        ValueError: if none exists, or its configuration cannot be read.
        DownloadError: if the hub cannot be reached.
    """
    return resolve_model(reference)


def choose_context(model: Model, requested: int | None) -> int:
    """Return the requested context, or the model's maximum up to a limit."""
    return requested or min(model.max_tokens or LONGEST_DEFAULT, LONGEST_DEFAULT)


def read_formats(text: str) -> tuple[Format, ...]:
    """Read formats separated by commas.

    Raises:
        ValueError: for an unknown one.
    """
    return tuple(dict.fromkeys(parse_format(part) for part in text.split(",")))


def describe_layers(model: Model) -> str:
    """Return the kinds of attention of a model with their numbers of layers, in words."""
    counts: dict[str, int] = {}
    for layer, count in count_kinds(model.layers):
        kind = _describe_layer(layer)
        counts[kind] = counts.get(kind, 0) + count
    return "; ".join(f"{count} x {kind}" for kind, count in counts.items())


def collect_notes(
    model: Model, candidates: Candidates, context: int, *, encoder_tokens: int | None = None
) -> list[str]:
    """Return the limitations of a model's figures.

    Args:
        model: The model.
        candidates: Its variants.
        context: Tokens of a sequence.
        encoder_tokens: The requested tokens of the encoder.
    """
    notes = list(model.notes)
    fixed = None if model.encoder is None else model.encoder.tokens
    if encoder_tokens is not None and model.encoder is None:
        notes.append(f"{model.name} has no encoder: --encoder-tokens changes nothing")
    elif encoder_tokens is not None and fixed not in {None, encoder_tokens}:
        notes.append(
            f"the encoder of {model.name} always has {fixed:,} tokens: --encoder-tokens changes "
            "nothing"
        )
    if model.max_tokens is not None and context > model.max_tokens:
        notes.append(
            f"{model.name} was made for {model.max_tokens:,} tokens: at {context:,} the bytes are "
            "right, the model is not"
        )
    return [*notes, *candidates.refused]


def _describe_layer(layer: Layer) -> str:
    attention = layer.attention
    if isinstance(attention, LatentAttention):
        return f"latent {attention.kv_rank} + {attention.rope_dim}"
    if isinstance(attention, CompressedAttention):
        rate = attention.compressor.rate if attention.compressor else None
        summaries = f", a summary of every {rate}" if rate else ""
        return f"K=V, 1 head of {attention.head_dim}, window {attention.window}{summaries}"
    config = attention.config
    shared = f", reads layer {attention.reads_layer}" if attention.reads_layer is not None else ""
    crossed = ", cross attention" if layer.cross is not None else ""
    heads = f"{config.num_kv_heads} of {config.num_heads} heads of {config.size_per_head}"
    return f"{format_label(config.variant)} ({heads}{shared}{crossed})"
