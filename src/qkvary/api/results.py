"""A result: a value, and the report that shows it in a terminal or a notebook."""

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from qkvary.reports.json_data import to_json
from qkvary.reports.report import Chart, Report, ReportFormat, walk
from qkvary.reports.tables import Table
from qkvary.reports.terminal import print_report
from qkvary.storage.packages import require
from qkvary.storage.untrusted_files import StrPath
from qkvary.text.names import suggest

if TYPE_CHECKING:
    from pandas import DataFrame

Value = TypeVar("Value")

WIDTH = 120
"""Width in columns of a printed result if there is no terminal."""


@dataclass(frozen=True, slots=True, repr=False)
class Result(Generic[Value]):
    """The result of a verb: its value, and the report that shows it."""

    value: Value
    """The value that the verb computed, such as a ``planning.plans.Plan``."""
    report: Report
    """The report that the terminal, the notebook and the page show."""
    _: KW_ONLY
    files: tuple[Path, ...] = ()
    """The files that were written."""
    closing: tuple[str, ...] = ()
    """Lines that a terminal shows after the report and the file names."""
    notices: tuple[str, ...] = ()
    """Warnings about the call, such as damaged runs that were left out."""
    exit_code: int = 0
    """The exit code of the command."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data: the document that ``--json`` prints."""
        return json.loads(to_json(self.report.data))

    def to_pandas(self, table: str | None = None) -> "DataFrame":
        """Return a table as a data frame, with unrounded values.

        Args:
            table: A name from ``tables``; by default, the first name.

        Raises:
            ValueError: if pandas is not installed, or there is no such table.
        """
        require("pandas")
        tables = _tables(self.report)
        found = next(iter(tables.values()), None) if table is None else tables.get(table)
        if found is None:
            raise ValueError(
                f"expected the name of a table, got {table!r}; {suggest(table or '', tables)}"
            )
        columns = [column.key for column in found.columns]
        rows = [[cell.raw for cell in row] for row in found.rows]
        # pandas is optional.
        import pandas as pd

        return pd.DataFrame(rows, columns=columns)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables for ``to_pandas``."""
        return tuple(_tables(self.report))

    def save(
        self, target: StrPath, formats: Sequence[ReportFormat] | None = None
    ) -> tuple[Path, ...]:
        """Write the whole report.

        Args:
            target: A folder, or a file that ends in .html, .md or .json.
            formats: The formats for a folder: html, markdown, csv, svg, png, pdf, json.

        Returns:
            The files that were written.

        Raises:
            ValueError: if a format is unknown, or the package for a format is not installed.
        """
        # The renderers take longer to import than most results take to compute.
        from qkvary.reports.files import write_report

        return write_report(self.report, target, formats)

    def __str__(self) -> str:
        width = shutil.get_terminal_size((WIDTH, 0)).columns
        screen = Console(file=io.StringIO(), width=width, highlight=False, emoji=False)
        with screen.capture() as capture:
            print_report(self.report, screen, rest=".save(folder)")
        return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from qkvary.reports.page import render_fragment

        return render_fragment(self.report)


def add_data(report: Report, **more: object) -> Report:
    """Return a copy of a report with additional keys in its JSON document."""
    return replace(report, data={**report.data, **more})


def say_in_lines(subject: str, data: Mapping[str, Any], line: str, *more: str) -> Report:
    """Return a report of plain lines: ``line`` first, then ``more``."""
    return Report(subject=subject, question=line, lead="\n".join(more), data=data)


def _tables(report: Report) -> dict[str, Table]:
    """Return the tables of a report by name. Its datasets (unrounded, in long form) come first."""
    blocks = [block for section in report.sections for block in walk(section.blocks)]
    shown = [block.table if isinstance(block, Chart) else block for block in blocks]
    found: dict[str, Table] = {}
    for table in (*report.datasets, *shown):
        if isinstance(table, Table):
            found.setdefault(table.key, table)
    return found
