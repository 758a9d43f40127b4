"""List the variants: meanings, equations, costs, and published results."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import AnyModel, Labels
from qkvary.api.results import Result
from qkvary.arch.labels import as_variant
from qkvary.arch.table import VARIANTS
from qkvary.arch.variants import Variant
from qkvary.costs.formats import Dtype
from qkvary.reports.variants import choose_layer, variants_report
from qkvary.text.numbers import Count


@verb
def variants(
    labels: Annotated[Labels, Parameter(name="--label")] = (),
    *,
    model: AnyModel | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
    length: Count = 1024,
    dtype: Dtype = "float32",
) -> Result[tuple[Variant, ...]]:
    """List the variants: meanings, equations, costs, and published results.

    Costs are those of one causal attention layer: parameters with biases, multiply-accumulates per
    token (masked pairs of tokens included), and cache bytes per token.

    Args:
        labels: List only this variant, in any spelling: Q-K=V, q,k=v (can be repeated).
        model: The model whose layer is counted, instead of a layer of given sizes.
        d_model: Width of the counted layer; 512 if not given.
        num_heads: Query heads of the layer; 8 if not given.
        length: Tokens of the sequence: 1024, 32k, 1M.
        dtype: Number format of the cache.

    Raises:
        ValueError: for an unknown label, or a variant that does not fit the layer.
    """
    # This counts one layer; a variant that differs by layer is refused.
    chosen = tuple(map(as_variant, labels))
    report = variants_report(
        chosen,
        choose_layer(model, d_model=d_model, num_heads=num_heads),
        length=length,
        dtype=dtype,
        model=model.name if model else None,
    )
    return Result(chosen or tuple(entry.variant for entry in VARIANTS), report)
