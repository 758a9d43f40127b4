"""List the variants: meanings, equations, costs, and published figures."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import Json, Length, complete_variant
from qkvary.cli._output import show
from qkvary.costs.formats import Dtype
from qkvary.reports.variants import LayerSize, variants_report

Labels = Annotated[
    tuple[str, ...],
    Parameter(
        name="--label",
        negative=(),
        help="Only this variant, in any spelling (Q-K=V, q,k=v); repeat it for more.",
        completer=complete_variant,
    ),
]
Width = Annotated[int, Parameter(name="--d-model", help="Width of the counted layer.")]
Heads = Annotated[int, Parameter(name="--num-heads", help="Query heads of the layer.")]
CacheType = Annotated[Dtype, Parameter(name="--dtype", help="Number format of the cache.")]


def command(
    *,
    label: Labels = (),
    d_model: Width = 512,
    num_heads: Heads = 8,
    length: Length = 1024,
    dtype: CacheType = "float32",
    json_output: Json = False,
) -> None:
    """List the variants: meanings, equations, costs, and published figures.

    Costs are those of one causal attention layer: parameters with biases, multiply-accumulates per
    token with every pair of tokens counted, and cache bytes per token.
    """
    size = LayerSize(d_model=d_model, num_heads=num_heads, length=length, dtype=dtype)
    show(variants_report(label, size), json_output=json_output)
