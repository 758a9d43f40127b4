"""The figures at the end of a training with their intervals, for ``qkvary claims``."""

from __future__ import annotations

from likeness_page import EXCESSES, Likeness, excess, over_seeds

from qkvary.reports import script_figures
from qkvary.reports.tables import Table

QUANTITIES = ("explained", "tokens")
"""The kinds of likeness that are compared with that of random weights."""


def figures_table(study: Likeness) -> Table:
    """Return how much more alike keys and values are than those of random weights, in points."""
    last, variant = study.steps[-1], study.apart[0]["variant"]
    return script_figures.figures_table(
        script_figures.figure_row(
            over_seeds(study.apart, last, excess(*EXCESSES[quantity])),
            table="at the end",
            variant=variant,
            reference="random weights",
            quantity=quantity,
            scale=100,
        )
        for quantity in QUANTITIES
    )
