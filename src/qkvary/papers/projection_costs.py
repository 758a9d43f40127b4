"""Derives the formulas in Table 1 of two papers and in the poster's table from the cost model.

The formulas contain n (tokens), d (width) and m (copies of a score map).

The published position term ``+`` makes m copies of every score map and combines them by a 1x1
convolution. This module counts ``+`` as published; the cost model counts the equivalent reduced
form.
"""

import dataclasses
from collections.abc import Callable

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.sharing import Source
from qkvary.costs.macs import projection_macs_per_token
from qkvary.costs.parameters import attention_parameters, projection_parameters
from qkvary.papers.derivation import (
    Alternative,
    Derivation,
    Derive,
    Registry,
    by_column,
    variant_of,
)
from qkvary.studies.published_tables import PublishedFigure

WITHOUT_BIASES = "input projections only, weights without biases, one layer"
_QUERY_AND_KEY = "only the projections of query and key counted"
_ONE_HEAD = "one head"
_WITH_OUTPUT = (
    "Every variant also keeps the output projection: with 3, 2 or 1 input projections, a layer "
    "has 4, 3 or 2 matrices."
)


def computation(figure: PublishedFigure) -> Derivation:
    """Derive how many MACs the input projections and the published ``+`` need for n tokens."""
    config = _layer(figure)
    count = sum(_squares(config, source, macs=True) for source in config.variant.projections)
    plain = _spell(count, "nd^2")
    if not config.variant.plus:
        return Derivation(
            value=plain,
            formula="each of n tokens is multiplied by the d x d weights of each input projection",
            convention=WITHOUT_BIASES,
            note=_WITH_OUTPUT,
        )
    return Derivation(
        value=f"{plain} + H n^2 m",
        formula="each input projection takes n d^2 MACs, and each score of each head takes m",
        convention=f"{WITHOUT_BIASES}; the 1x1 map of the position term (+) as published",
        others=(Alternative(value=f"{plain} + n^2 m", convention=_ONE_HEAD),),
        note=(
            "The position term (+) can be rewritten exactly as one temperature and one bias per "
            "key. In that form, it needs about n MACs."
        ),
    )


def parameters(figure: PublishedFigure) -> Derivation:
    """Derive the number of weights in the input projections and in the map of ``+``."""
    config = _layer(figure)
    count = sum(_squares(config, source, macs=False) for source in config.variant.projections)
    plain = _spell(count, "d^2")
    if not config.variant.plus:
        return Derivation(
            value=plain,
            formula="each input projection has d x d weights",
            convention=WITHOUT_BIASES,
            note=_WITH_OUTPUT,
        )
    maps = _map_weights(config)
    letter = "m" if maps == config.position.plus_features else str(maps)
    return Derivation(
        value=f"{plain} + {letter}",
        formula="each input projection has d x d weights, and the 1x1 map has one per channel",
        convention=WITHOUT_BIASES,
        note="The 1x1 map also has a bias, and the character model has one map per head.",
    )


def _earlier(derive: Callable[[PublishedFigure], Derivation]) -> Derive:
    """Return a function that derives a figure of the earlier paper's table.

    The derived value counts the value projection. An alternative leaves it out, as that table does.
    """

    def derived(figure: PublishedFigure) -> Derivation:
        full = derive(figure)
        config = _layer(figure)
        counted = [source for source in config.variant.projections if source != "v"]
        unit = "nd^2" if figure.column == "computation" else "d^2"
        plain = _spell(len(counted), unit)
        extra = {"computation": " + n^2 m", "parameters": " + m"}[figure.column]
        single = f"{_ONE_HEAD} and " if config.variant.plus and unit == "nd^2" else ""
        alternative = Alternative(
            value=plain + (extra if config.variant.plus else ""),
            convention=single + _QUERY_AND_KEY,
        )
        return dataclasses.replace(
            full,
            others=(alternative,),
            note="If the value projection is counted, KV has two thirds of QKV's cost, not half.",
        )

    return derived


def _layer(figure: PublishedFigure) -> AttentionConfig:
    return AttentionConfig(d_model=64, num_heads=4, variant=parse_variant(variant_of(figure)))


def _squares(config: AttentionConfig, source: Source, *, macs: bool) -> int:
    """Return a projection's cost divided by d^2: MACs per token, or weights if not ``macs``."""
    size = (
        projection_macs_per_token(config, source)
        if macs
        else projection_parameters(config, source).weights
    )
    return size // config.d_model**2


def _map_weights(config: AttentionConfig) -> int:
    """Return the number of weights in the map that ``+`` variants add to a layer."""
    sources = (projection_parameters(config, source) for source in config.variant.projections)
    projections = sum(size.weights for size in sources) + config.d_model**2
    return attention_parameters(config).weights - projections


def _spell(count: int, unit: str) -> str:
    return unit if count == 1 else f"{count}{unit}"


_COLUMNS = {"computation": computation, "parameters": parameters}

TABLES: Registry = {
    "three-projections-table-1": by_column(_COLUMNS),
    "poster-projection-cost": by_column(_COLUMNS),
    "key-value-table-1": by_column(
        {column: _earlier(derive) for column, derive in _COLUMNS.items()}
    ),
}
