"""Recompute every figure in the papers' tables, and compare it with the printed figure."""

from typing import Annotated, Literal

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.results import Result
from qkvary.papers.catalog import published_names, select_names
from qkvary.papers.published_report import published_report
from qkvary.papers.recomputation import Recomputed, recompute
from qkvary.papers.tables import load_published

Table = Annotated[str, Parameter(name="TABLE")]
VerdictChoice = Literal["equal", "rounding", "other-convention", "wrong", "measured", "stated"]


@verb
def published(
    *tables: Table, document: tuple[str, ...] = (), verdict: tuple[VerdictChoice, ...] = ()
) -> Result[tuple[Recomputed, ...]]:
    """Recompute every figure in the papers' tables, and compare it with the printed figure.

    Without tables, the report counts the verdicts of every table. It then lists the figures that
    differ from their recomputed values, with the formula and the reason for the difference. With
    tables, the report lists all figures of these tables.

    Args:
        tables: Names of tables to print row by row, or the ends of names (table-7, scenario). If no
            table is given, a summary of all tables is printed.
        document: Only tables of this document, such as poster (can be repeated).
        verdict: Only figures with this verdict (can be repeated).
    """
    every = sorted(published_names(), key=_order)
    names = select_names(tables, every, document, "published table")
    rows = [row for name in names for row in recompute(name)]
    if verdict:
        rows = [row for row in rows if row.verdict.replace(" ", "-") in verdict]
    is_brief = not tables and not verdict
    shown = [row for row in rows if row.needs_explanation] if is_brief else rows
    found = list(map(load_published, names))
    report = published_report(found, rows, counts=not tables, shown=shown)
    return Result(tuple(rows), report)


def _order(name: str) -> tuple[str, int]:
    """Return a sort key that puts Table 10 after Table 9."""
    place, _, number = name.rpartition("-")
    return (place, int(number)) if number.isdigit() else (name, 0)
