"""Recomputes the papers' tables: every figure as printed and as it should be, with a verdict."""

from collections.abc import Sequence

from qkvary.api.results import Result
from qkvary.papers.catalog import published_names
from qkvary.papers.published_report import published_report
from qkvary.papers.recomputation import FigureVerdict, Recomputed, recompute
from qkvary.papers.tables import find_published, load_published


def published(
    *tables: str, verdict: Sequence[FigureVerdict] = (), full: bool = False
) -> Result[tuple[Recomputed, ...]]:
    """Recompute the papers' tables: every figure as printed and as it should be, with a verdict.

    Without a table: the number of equal figures per table, and every other figure with its formula
    and the reason. With tables: all their figures.

    Args:
        tables: Names, or their ends (``table-7``, ``scenario``).
        verdict: Only figures with these verdicts.
        full: All figures also without a table.
    """
    names = [find_published(name) for name in tables] or sorted(published_names(), key=_order)
    rows = [row for name in names for row in recompute(name)]
    if verdict:
        rows = [row for row in rows if row.verdict in verdict]
    elif not tables and not full:
        rows = [row for row in rows if row.needs_explanation]
    report = published_report(list(map(load_published, names)), rows, counts=not tables)
    return Result(tuple(rows), report)


def _order(name: str) -> tuple[str, int]:
    """Return a sort key that puts Table 10 after Table 9."""
    place, _, number = name.rpartition("-")
    return (place, int(number)) if number.isdigit() else (name, 0)
