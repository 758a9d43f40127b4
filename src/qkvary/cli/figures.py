"""Draw the papers' figures again, from the runs and tables that are there."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import DEFAULT_OUT, Json, Out
from qkvary.cli._output import show
from qkvary.cli._streams import print_error
from qkvary.reports.paper_figures import PAPER_FIGURES, find_figure
from qkvary.reports.paper_records import StudyRecords, read_records
from qkvary.reports.paper_report import paper_report
from qkvary.reports.report import DEFAULT_FORMATS, ReportFormat
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store

Name = Annotated[
    str,
    Parameter(
        name="FIGURE",
        help="Figures to draw: a name, or its end (figure-6). None: all.",
        completer=lambda _: PAPER_FIGURES,
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
    if tables is not None and not tables.is_dir():
        raise UsageError(f"expected a folder of reports for --tables, got {tables}")
    chosen = [find_figure(name) for name in figures] or list(PAPER_FIGURES.values())
    store, damage = Store(out), list[str]()

    def read(name: str) -> StudyRecords:
        found = read_records(name, store, tables)
        damage.extend(found.damage)
        return found

    report = paper_report(chosen, read)
    target = out / "reports" / "figures" if to is None else to
    show(report, json_output=json_output, target=target, formats=formats, damage=damage)
    for sentence in damage:
        print_error(sentence)
