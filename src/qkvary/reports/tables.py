"""Tables as values: the page, the CSV, the Markdown and the terminal print the same cells.

This module knows what a table is; which tables a study has stands in ``contents``.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from qkvary.text import names, numbers

Raw = str | int | float | bool | None
Tone = Literal["", "better", "worse", "quiet", "warn"]

_DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell: the figure itself and how it is printed."""

    raw: Raw
    """Goes into the CSV, unrounded."""
    text: str
    """Goes everywhere else."""
    below: tuple[str, ...] = ()
    """Further lines in small type, joined with the text where there is only one line."""
    tone: Tone = ""
    name: bool = False
    """Whether this is a name that somebody gave, so that it is isolated and cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column."""

    key: str
    """Header in the CSV; units last, as in the Python interface."""
    title: str
    """Header everywhere else."""
    numeric: bool = True
    below: str = ""
    """A second line of the header in small type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its words."""

    key: str
    """Names the files and the element."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"expected {len(self.columns)} cells in each row of {self.key!r}, "
                    f"got {len(row)}"
                )


def named(text: str) -> Cell:
    """Return a cell that holds a name."""
    return Cell(raw=text, text=names.clip(text), name=True)


def plain(raw: Raw, text: str | None = None, tone: Tone = "") -> Cell:
    """Return a cell; without a text the raw value is printed as it is."""
    if text is None:
        text = numbers.MISSING if raw is None else str(raw)
    return Cell(raw=raw, text=text, tone=tone)


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Raw]]) -> str:
    """Write rows as CSV (RFC 4180) that no spreadsheet runs as a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow([csv_field(column) for column in columns])
    writer.writerows([csv_field(value) for value in row] for row in rows)
    return stream.getvalue()


def csv_field(value: Raw) -> str:
    """Write one field: numbers as numbers, and an apostrophe before what would be a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = names.clean(value)
    return (
        f"'{text}"
        if text.lstrip(" \n").startswith(_DANGEROUS) or text.startswith(_DANGEROUS)
        else text
    )


def table_csv(table: Table) -> str:
    """Write a table as CSV."""
    return to_csv(
        [column.key for column in table.columns], ([cell.raw for cell in row] for row in table.rows)
    )


def one_line(cell: Cell) -> str:
    """Return a cell as one line of text."""
    return " ".join((cell.text, *cell.below)).strip()


def table_markdown(table: Table) -> str:
    """Write a table as Markdown (GitHub's tables)."""
    lines = [f"### {names.markdown(table.title)}", ""]
    heads = [names.markdown(f"{column.title} {column.below}".strip()) for column in table.columns]
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines.append(f"| {' | '.join(heads)} |")
    lines.append(f"| {' | '.join(rules)} |")
    lines.extend(
        f"| {' | '.join(names.markdown(one_line(cell)) for cell in row)} |" for row in table.rows
    )
    lines.extend(f"\n{names.markdown(note)}" for note in table.notes)
    return "\n".join(lines) + "\n"
