"""Draw the papers' figures again, from the runs and tables that exist."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.api.arguments import verb
from qkvary.api.options import Formats
from qkvary.api.results import Result
from qkvary.data.checkpoint_names import RUNS
from qkvary.papers.catalog import select_names
from qkvary.papers.paper_figures import PAPER_FIGURES, PaperFigure
from qkvary.reports.report import DEFAULT_FORMATS
from qkvary.storage.errors import UsageError

Figure = Annotated[str, Parameter(name="FIGURE")]


@verb
def figures(
    *figures: Figure,
    document: tuple[str, ...] = (),
    out: Path = RUNS,
    tables: Path | None = None,
    to: Path | None = None,
    formats: Formats = DEFAULT_FORMATS,
) -> Result[tuple[PaperFigure, ...]]:
    """Draw the papers' figures again, from the runs and tables that exist.

    Numbers that a paper prints for the same experiment are listed with ours. Figures without runs
    are listed with the command that makes the runs.

    Args:
        figures: Names of figures to draw, or the ends of names (figure-9); all if none is given.
        document: Only figures of this document, such as key-value (can be repeated).
        out: Folder of runs and reports.
        tables: Folder of reports, such as studies. If OUT has no run of a study, its curves come
            from NAME/tables.
        to: Folder of the report; by default OUT/reports/figures.
        formats: Format to write (can be repeated).
    """
    # Reading runs and drawing need numpy, which the help does not.
    from qkvary.papers.figure_records import StudyRecords, read_records
    from qkvary.papers.figures_report import paper_report
    from qkvary.reports.files import write_report
    from qkvary.studies.running.store import Store

    if tables is not None and not tables.is_dir():
        raise UsageError(f"expected a folder of reports for --tables, got {tables}")
    names = select_names(figures, PAPER_FIGURES, document, "figure of a paper")
    chosen = [PAPER_FIGURES[name] for name in names]
    store, damage = Store(out), list[str]()

    def read(name: str) -> StudyRecords:
        found = read_records(name, store, tables)
        damage.extend(found.damage)
        return found

    report = paper_report(chosen, read)
    files = write_report(report, out / "reports" / "figures" if to is None else to, formats)
    return Result(tuple(chosen), report, files=files, notices=tuple(damage))
