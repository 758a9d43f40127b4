"""List the variants: meanings, equations, costs, and published figures."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._models import complete_model
from qkvary.cli._options import Full, Json, Length, complete_variant
from qkvary.cli._output import show
from qkvary.costs.formats import Dtype
from qkvary.reports.variants import choose_layer, variants_report

Labels = Annotated[
    tuple[str, ...],
    Parameter(
        help="Only this variant, in any spelling (Q-K=V, q,k=v); repeat it for more.",
        completer=complete_variant,
    ),
]
OfModel = Annotated[
    str | None,
    Parameter(
        help="Count a layer of this model: a named size, a config.json, or a hub id.",
        completer=complete_model,
    ),
]
Width = Annotated[int | None, Parameter(help="Width of the counted layer; 512 if not given.")]
Heads = Annotated[int | None, Parameter(help="Query heads of the layer; 8 if not given.")]
CacheType = Annotated[Dtype, Parameter(help="Number format of the cache.")]


def command(
    *,
    label: Labels = (),
    model: OfModel = None,
    d_model: Width = None,
    num_heads: Heads = None,
    length: Length = 1024,
    dtype: CacheType = "float32",
    full: Full = False,
    json_output: Json = False,
) -> None:
    """List the variants: meanings, equations, costs, and published figures.

    Costs are those of one causal attention layer: parameters with biases, multiply-accumulates per
    token with every pair of tokens counted, and cache bytes per token.
    """
    named = None
    if model is not None:
        from qkvary.checkpoints.reference_models import find_reference

        named = find_reference(model)
    size = choose_layer(
        named,
        d_model=d_model,
        num_heads=num_heads,
        length=length,
        dtype=dtype,
    )
    show(variants_report(label, size), json_output=json_output, full=full)
