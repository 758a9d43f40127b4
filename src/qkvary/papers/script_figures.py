"""Writes ``figures.csv``, a table of measured numbers that claims use.

Scripts in the folder ``studies`` write this file, and ``papers.kept_tables`` reads it.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from qkvary.reports.markdown import table_markdown
from qkvary.reports.tables import Cell, Column, Raw, Table, plain, table_csv
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.studies.results.statistics import Estimate, find_detectable
from qkvary.text import names, numbers

WORDS = ("table", "variant", "reference", "quantity")
DECIMALS = 4


def figures_table(rows: Iterable[Mapping[str, Raw]]) -> Table:
    """Return a table of rows from :func:`figure_row`; all rows have the same keys."""
    filled = list(rows)
    return Table(
        key="figures",
        title="Figures",
        columns=tuple(
            Column(key=key, title=key.replace("_", " "), numeric=key not in WORDS)
            for key in filled[0]
        ),
        rows=tuple(tuple(map(_write, row.values())) for row in filled),
    )


def _write(raw: Raw) -> Cell:
    return plain(raw, numbers.fixed(raw, DECIMALS)) if isinstance(raw, float) else plain(raw)


def write_figures(folder: Path, page: str, rows: Iterable[Mapping[str, Raw]]) -> None:
    """Write a page that ends with a table of the rows, and write the same table to a CSV file."""
    table = figures_table(rows)
    files = {"README.md": page + table_markdown(table), "tables/figures.csv": table_csv(table)}
    for name, text in files.items():
        make_directory((folder / name).parent)
        atomic_write_file(folder / name, text.encode())


def describe_environment(environment: Mapping[str, Any]) -> str:
    """Return one line of Markdown with the software versions and a description of the machine."""
    known = sorted(environment.items())
    return "; ".join(f"{name} {names.markdown(str(value))}" for name, value in known)


def figure_row(
    estimate: Estimate,
    *,
    table: str,
    variant: str,
    quantity: str,
    reference: str = "",
    scale: float = 1.0,
    runs: int | None = None,
    parameters: Collection[int] = (),
) -> dict[str, Raw]:
    """Return a table row: a number, its interval and the smallest difference that it can detect.

    ``scale`` multiplies all numbers in the row, for example by 100 for percentages. ``reference``
    is the variant whose number was subtracted; it is empty if the number is not a difference.
    ``runs`` is the number of runs, by default the number of units in ``estimate``.
    """
    found = {
        "value": estimate.mean,
        "low": estimate.low,
        "high": estimate.high,
        "detectable": find_detectable(estimate),
    }
    return {
        "table": table,
        "variant": variant,
        "reference": reference,
        "quantity": quantity,
        **{name: None if one is None else scale * one for name, one in found.items()},
        "runs": estimate.units if runs is None else runs,
        "parameters_least": min(parameters, default=None),
        "parameters_most": max(parameters, default=None),
    }
