"""Tables as values: the page, the CSV, the Markdown and the terminal print the same cells.

Knows what a table is, not which tables exist.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
    main: bool = False
    """Whether this is the main table of its page: larger, and its title stands above it already."""

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


def csv_field(value: Raw) -> str:
    """Return one field: numbers as numbers, and an apostrophe before what would be a formula."""
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
    """Return a table as CSV (RFC 4180) that no spreadsheet runs as a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow([csv_field(column.key) for column in table.columns])
    writer.writerows([csv_field(cell.raw) for cell in row] for row in table.rows)
    return stream.getvalue()


def one_line(cell: Cell) -> str:
    """Return a cell as one line of text."""
    return " ".join((cell.text, *cell.below)).strip()


def pick(value: object, wanted: str) -> dict[str, Any]:
    """Return attributes of a value by their names, in their order.

    Args:
        value: Where the attributes are; ``None`` has ``None`` for each.
        wanted: The names, separated by blanks. ``new=old.inner`` renames an attribute of an
            attribute.
    """
    found: dict[str, Any] = {}
    for name in wanted.split():
        new, _, path = name.rpartition("=")
        inner: Any = value
        for part in path.split("."):
            inner = None if inner is None else getattr(inner, part)
        found[new or path] = inner
    return found


def dataset(key: str, rows: Iterable[Mapping[str, Raw]]) -> Table:
    """Return a table of unrounded figures from rows that all have the same keys."""
    filled = list(rows)
    return Table(
        key=key,
        title=key,
        columns=tuple(Column(key=name, title=name) for name in (filled[0] if filled else ())),
        rows=tuple(tuple(plain(value) for value in row.values()) for row in filled),
    )
