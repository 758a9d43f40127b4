"""Draw the papers' figures again, from the runs and tables that are there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import DEFAULT_OUT, Json, Out
from qkvary.cli._output import show
from qkvary.cli._streams import print_error
from qkvary.reports.files import write_report
from qkvary.reports.paper_figures import PAPER_FIGURES, find_figure
from qkvary.reports.paper_records import StudyRecords, read_records
from qkvary.reports.paper_report import paper_report
from qkvary.reports.report import DEFAULT_FORMATS, ReportFormat
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store


def complete_figure(_context: object) -> Iterator[str]:
    """Yield the names of the figures, for the shell."""
    yield from PAPER_FIGURES


Name = Annotated[
    str,
    Parameter(
        name="FIGURE",
        help="Figures to draw: a name, or its end (figure-6). None: all.",
        completer=complete_figure,
    ),
]
Tables = Annotated[
    Path | None,
    Parameter(
        name="--tables",
        help="Folder of reports, such as studies: where OUT has no run of a study, its curves are "
        "those of NAME/tables.",
    ),
]
Formats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", negative=(), help="Format to write; repeat it for more."),
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
    files = write_report(report, out / "reports" / "figures" if to is None else to, formats)
    for sentence in damage:
        print_error(sentence)
    show(report, json_output=json_output, files=files, damage=damage)
