"""Count what a model costs in every variant: parameters, arithmetic, weights and cache."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import AnyModel, Variants
from qkvary.api.results import Result
from qkvary.costs.comparison import CostComparison, compare_model
from qkvary.costs.formats import parse_format
from qkvary.reports.cost import cost_report
from qkvary.text.numbers import Count


@verb
def cost(
    model: AnyModel,
    variants: Variants = (),
    *,
    context: Count | None = None,
    batch: Count = 1,
    dtype: Annotated[str, Parameter(name=("--dtype", "--cache"))] = "bf16",
    weights: str = "bf16",
    encoder_tokens: Count | None = None,
) -> Result[CostComparison]:
    """Count what a model costs in every variant: parameters, arithmetic, weights and cache.

    The first row is the given model. The other rows are networks that share the projections of the
    model in other ways, and that would have to be trained first.

    Args:
        model: The model, by its name or as a value.
        variants: Compare these variants, in any spelling (Q-K=V, q,k=v, MQA). If none are
            given, variants that are worth comparing are chosen.
        context: Tokens per sequence: 2048, 32k (32,768), 1M. If not given, the model's maximum, at
            most 8k.
        batch: Number of sequences in a batch.
        dtype: Format of the cache: fp32, bf16, fp16, fp8, int8, int4, int4-g32 (groups of 32).
        weights: Format of the weights: fp32, bf16, fp8, int8, int4.
        encoder_tokens: Tokens in the input of an encoder; the context if not given.

    Raises:
        ValueError: for an unknown model, label or format, or a number that makes no sense.
        DownloadError: if the hub cannot be reached.
    """
    costs = compare_model(
        model,
        variants,
        context=context,
        batch=batch,
        weights=parse_format(weights),
        cache=parse_format(dtype),
        encoder_tokens=encoder_tokens,
    )
    return Result(costs, cost_report(costs))
