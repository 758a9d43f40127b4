"""Count what a model costs in every variant: parameters, arithmetic, weights and cache."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.checkpoints.reference_models import find_reference
from qkvary.cli._models import (
    Context,
    Decimal,
    EncoderTokens,
    ModelName,
    VariantLabels,
    WeightFormat,
)
from qkvary.cli._options import Json, positive
from qkvary.cli._output import show
from qkvary.costs.comparison import compare_model
from qkvary.costs.formats import parse_format
from qkvary.reports.cost import cost_report

Batch = Annotated[int, positive("Sequences in a batch.")]
CacheFormat = Annotated[
    str,
    Parameter(
        name=("--dtype", "--cache"),
        help="Format of the cache: fp32, bf16, fp16, fp8, int8, int4, int4-g32 (groups of 32).",
    ),
]


def command(
    model: ModelName,
    /,
    *,
    variant: VariantLabels = (),
    context: Context = None,
    batch: Batch = 1,
    dtype: CacheFormat = "bf16",
    weights: WeightFormat = "bf16",
    encoder_tokens: EncoderTokens = None,
    decimal: Decimal = False,
    json_output: Json = False,
) -> None:
    """Count what a model costs in every variant: parameters, arithmetic, weights and cache.

    The first row is the given model; the others share its projections differently and would have
    to be trained.
    """
    costs = compare_model(
        find_reference(model),
        variant,
        context=context,
        batch=batch,
        weights=parse_format(weights),
        cache=parse_format(dtype),
        encoder_tokens=encoder_tokens,
        decimal=decimal,
    )
    show(cost_report(costs), json_output=json_output)
