"""Recompute the papers' tables: every figure as printed and as it should be, with a verdict."""

from typing import Annotated, Literal

from cyclopts import Parameter

from qkvary.cli._options import Json
from qkvary.cli._output import show
from qkvary.literature.figures import find_published, load_published, published_names
from qkvary.literature.recomputation import VERDICTS, FigureVerdict, recompute
from qkvary.reports.published import published_report

VerdictChoice = Literal["equal", "rounding", "other-convention", "wrong", "measured", "stated"]
Name = Annotated[
    str,
    Parameter(
        name="TABLE",
        help="Tables to print row by row: a name, or its end (table-7, scenario). None: all, in "
        "short.",
        completer=lambda _: published_names(),
    ),
]
Verdicts = Annotated[
    tuple[VerdictChoice, ...],
    Parameter(show_default=False, help="Only figures with this verdict; repeat it for more."),
]


def command(*tables: Name, verdict: Verdicts = (), json_output: Json = False) -> None:
    """Recompute the papers' tables: every figure as printed and as it should be, with a verdict.

    Without a table: the number of equal figures per table, and every other figure with its formula
    and the reason. With tables: all their figures.
    """
    names = [find_published(name) for name in tables] or sorted(published_names(), key=_order)
    wanted = [_verdict(choice) for choice in verdict]
    rows = [row for name in names for row in recompute(name)]
    if wanted:
        rows = [row for row in rows if row.verdict in wanted]
    elif not tables and not json_output:
        rows = [row for row in rows if row.needs_explanation]
    report = published_report(list(map(load_published, names)), rows, counts=not tables)
    show(report, json_output=json_output)


def _order(name: str) -> tuple[str, int]:
    """Return a sort key that puts Table 10 after Table 9."""
    place, _, number = name.rpartition("-")
    return (place, int(number)) if number.isdigit() else (name, 0)


def _verdict(choice: VerdictChoice) -> FigureVerdict:
    return next(verdict for verdict in VERDICTS if verdict.replace(" ", "-") == choice)
