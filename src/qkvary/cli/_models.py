"""The options that planning commands share: the model, its variants, formats and units."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import positive, variant_labels
from qkvary.data.checkpoint_names import packaged_names


def complete_model(_context: object) -> Sequence[str]:
    """Return the names of models, for the shell."""
    from qkvary.arch.families.sizes import name_sizes

    return (*name_sizes(), *packaged_names())


ModelName = Annotated[
    str,
    Parameter(
        help="A named size (gpt2, llama-3.1-8b, 300M), a config.json or its folder, a checkpoint "
        "(.gguf, .bin, a folder), or a hub id.",
        completer=complete_model,
    ),
]
VariantLabels = Annotated[
    tuple[str, ...],
    variant_labels("Compare these variants, in any spelling (Q-K=V, q,k=v, MQA)."),
]
Context = Annotated[
    int | None,
    positive("Tokens per sequence: 2048, 32k (32,768), 1M. The model's maximum, at most 8k."),
]
EncoderTokens = Annotated[
    int | None, positive("Tokens that an encoder reads; as many as --context if not given.")
]
WeightFormat = Annotated[str, Parameter(help="Format of the weights: fp32, bf16, fp8, int8, int4.")]
Decimal = Annotated[bool, Parameter(help="Print kB, MB and GB (10^3 ...), not KiB, MiB, GiB.")]
