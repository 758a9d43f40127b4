"""Draw the papers' figures again, from the runs and tables that are there."""

import importlib
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from qkvary.cli._options import DEFAULT_OUT, Json, Out
from qkvary.cli._output import console, print_line, show
from qkvary.cli._streams import print_error
from qkvary.reports.report import DEFAULT_FORMATS, ReportFormat

Name = Annotated[
    str,
    Parameter(
        name="FIGURE",
        help="Figures to draw: a name, or its end (figure-9). None: all.",
        completer=lambda _: _papers("paper_figures").PAPER_FIGURES,
    ),
]
Tables = Annotated[
    Path | None,
    Parameter(
        help="Folder of reports, such as studies: where OUT has no run of a study, its curves are "
        "those of NAME/tables.",
    ),
]
Formats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", help="Format to write; repeat it for more."),
]
Target = Annotated[
    Path | None,
    Parameter(name="--to", help="Folder of the report; by default OUT/reports/figures."),
]


def command(
    *figures: Name,
    out: Out = DEFAULT_OUT,
    tables: Tables = None,
    to: Target = None,
    formats: Formats = DEFAULT_FORMATS,
    json_output: Json = False,
) -> None:
    """Draw the papers' figures again, from the runs and tables that are there.

    Numbers that a paper prints of the same experiment are listed with ours. What has no runs is
    named with the command that makes them.
    """
    found = _papers("figures").figures(*figures, out=out, tables=tables, to=to, formats=formats)
    show(found.report, json_output=json_output, damage=list(found.notices), files=found.files)
    if not json_output:
        first, *others = found.files
        count = f" and {len(others)} more" if others else ""
        print_line(console(), f"written: {first}{count}")
    for sentence in found.notices:
        print_error(sentence)


def _papers(name: str) -> Any:
    return importlib.import_module(f"qkvary.papers.{name}")
