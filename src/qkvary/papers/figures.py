"""Draws the papers' figures again, from the runs and tables that are there."""

from pathlib import Path

from qkvary.api.results import Result
from qkvary.papers.figure_records import StudyRecords, read_records
from qkvary.papers.figures_report import paper_report
from qkvary.papers.paper_figures import PAPER_FIGURES, PaperFigure, find_figure
from qkvary.storage.errors import UsageError
from qkvary.storage.paths import StrPath, read_path
from qkvary.studies.running.store import Store


def figures(
    *names: str, out: StrPath, tables: StrPath | None = None, damage: list[str] | None = None
) -> Result[tuple[PaperFigure, ...]]:
    """Draw the papers' figures again, from the runs and tables that are there.

    Numbers that a paper prints of the same experiment are listed with ours. What has no runs is
    named with the command that makes them.

    Args:
        names: Names, or their ends (``figure-9``). None: all.
        out: The folder of runs.
        tables: Folder of reports, such as ``studies``: where ``out`` has no run of a study, its
            curves are those of ``NAME/tables``.
        damage: Takes one sentence per unreadable run.
    """
    folder = None if tables is None else read_path(tables, "a folder of reports for --tables")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"expected a folder of reports for --tables, got {folder}")
    chosen = [find_figure(name) for name in names] or list(PAPER_FIGURES.values())
    store = Store(Path(out))

    def read(name: str) -> StudyRecords:
        found = read_records(name, store, folder)
        if damage is not None:
            damage.extend(found.damage)
        return found

    return Result(tuple(chosen), paper_report(chosen, read))
