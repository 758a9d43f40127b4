"""The figures at the end of a training with their intervals, for ``qkvary claims``."""

from __future__ import annotations

from likeness_page import EXCESSES, Likeness, excess, over_seeds

from qkvary.reports.tables import Column, Table, plain
from qkvary.studies.results.statistics import detectable_difference

QUANTITIES = ("explained", "tokens")
"""The kinds of likeness that are compared with that of random weights."""


def figures_table(study: Likeness) -> Table:
    """Return how much more alike keys and values are than those of random weights, in points."""
    last, variant = study.steps[-1], study.apart[0]["variant"]
    columns = ("variant", "reference", "quantity", "value", "low", "high", "detectable", "runs")
    rows = []
    for quantity in QUANTITIES:
        found = over_seeds(study.apart, last, excess(*EXCESSES[quantity]))
        seen = None if found.std is None else detectable_difference(found.std, found.units)
        points = (
            None if part is None else 100 * part
            for part in (found.mean, found.low, found.high, seen)
        )
        names = ("at the end", variant, "random weights", quantity)
        rows.append((*map(plain, names), *map(plain, points), plain(found.units)))
    return Table(
        key="figures",
        title="At the end, above random weights",
        columns=(
            Column(key="table", title="table", numeric=False),
            *(Column(key=key, title=key, numeric=key not in columns[:3]) for key in columns),
        ),
        rows=tuple(rows),
    )
