"""Recompute the papers' tables: every figure as printed and as it should be, with a verdict."""

import importlib
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qkvary.cli._options import Json
from qkvary.cli._output import show

VerdictChoice = Literal["equal", "rounding", "other-convention", "wrong", "measured", "stated"]
Name = Annotated[
    str,
    Parameter(
        name="TABLE",
        help="Tables to print row by row: a name, or its end (table-7, scenario). None: all, in "
        "short.",
        completer=lambda _: _papers("catalog").published_names(),
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
    found = _papers("published").published(*tables, verdict=verdict)
    show(found.report, json_output=json_output)


def _papers(name: str) -> Any:
    return importlib.import_module(f"qkvary.papers.{name}")
