"""``qk.variants``: what the variants mean, and what each costs."""

from __future__ import annotations

from pathlib import Path

from qkvary.api.models import Configured, Labels, find_model, read_count, read_labels
from qkvary.api.results import Result
from qkvary.arch.labels import as_variant
from qkvary.arch.models import Model
from qkvary.arch.networks import Network
from qkvary.arch.table import VARIANTS
from qkvary.arch.variants import Variant
from qkvary.costs.formats import Dtype
from qkvary.reports.variants import choose_layer, variants_report


def variants(
    labels: Labels = (),
    *,
    model: str | Path | Model | Network | Configured | None = None,
    d_model: int | None = None,
    num_heads: int | None = None,
    length: int | str = 1024,
    dtype: Dtype = "float32",
) -> Result[tuple[Variant, ...]]:
    """List the variants: meanings, equations, costs, and published figures.

    Costs are those of one causal attention layer.

    Args:
        labels: Only these variants, as values or by their labels; the whole table by default.
        model: The model whose layer is counted, as for ``qk.cost``; or its sizes, as follows.
        d_model: Width of the counted layer, 512 by default.
        num_heads: Its query heads, 8 by default.
        length: Tokens of the sequence.
        dtype: The number format of the cache.

    Raises:
        ValueError: for an unknown label, or a variant that does not fit the layer.
    """
    # What differs by layer is no variant of one layer, which is counted here.
    chosen = tuple(map(as_variant, read_labels(labels)))
    layer = choose_layer(
        None if model is None else find_model(model),
        d_model=d_model,
        num_heads=num_heads,
        length=read_count(length),
        dtype=dtype,
    )
    found = chosen or tuple(entry.variant for entry in VARIANTS)
    return Result(found, variants_report(chosen, layer))
