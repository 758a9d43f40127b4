"""The figures at the end of a training with their intervals, for ``qkvary claims``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from likeness_page import EXCESSES, Figures, Likeness, excess, over_seeds

from qkvary.papers import script_figures
from qkvary.reports.tables import Raw, Table

QUANTITIES = ("explained", "tokens", "CKA")
"""The kinds of likeness that are compared with that of random weights."""
COSINES = {
    "cosine of key and value": "cosine_key-value",
    "cosine of query and key": "cosine_query-key",
    "cosine of query and value": "cosine_query-value",
}
"""The cosines of two weights, which a change of basis changes."""


def figures_table(study: Likeness, parameters: Mapping[str, int]) -> Table:
    """Return how alike keys and values are: in points above random weights, and by cosines.

    Args:
        study: What was measured.
        parameters: The parameters of each variant.
    """
    last, variant = study.steps[-1], study.apart[0]["variant"]

    def row(value: Callable[[Figures], float], **more: Any) -> dict[str, Raw]:
        return script_figures.figure_row(
            over_seeds(study.apart, last, value),
            table="at the end",
            variant=variant,
            parameters=[parameters[variant]],
            **more,
        )

    likeness = (
        row(excess(*EXCESSES[one]), reference="random weights", quantity=one, scale=100)
        for one in QUANTITIES
    )
    cosines = (row(itemgetter(key), quantity=name) for name, key in COSINES.items())
    return script_figures.figures_table((*likeness, *cosines))
