"""Tables as values: the page, the CSV, the Markdown and the terminal print the same cells.

Does not know which tables exist.
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
    """One cell: the figure and its printed form."""

    raw: Raw
    """The unrounded value, for the CSV."""
    text: str
    """The printed text, for all other formats."""
    below: tuple[str, ...] = ()
    """Further lines in small type, joined with the text if only one line fits."""
    tone: Tone = ""
    name: bool = False
    """Whether this is a name from a user, which is isolated and cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column."""

    key: str
    """The header in the CSV; units last, as in Python."""
    title: str
    """The header elsewhere."""
    numeric: bool = True
    below: str = ""
    """A second line of the header in small type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its title and notes."""

    key: str
    """The name of its file and element."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    main: bool = False
    """Whether this is the main table of its page: larger, without a title of its own."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"expected {len(self.columns)} cells in each row of {self.key!r}, "
                    f"got {len(row)}"
                )


def named(text: str, mark: str = "") -> Cell:
    """Return a cell that holds a name, with a mark that is shown only."""
    return Cell(raw=text, text=names.clip(text + mark), name=True)


def plain(raw: Raw, text: str | None = None, tone: Tone = "") -> Cell:
    """Return a cell; without a text the raw value is printed."""
    if text is None:
        text = numbers.MISSING if raw is None else str(raw)
    return Cell(raw=raw, text=text, tone=tone)


def csv_field(value: Raw) -> str:
    """Return one field: numbers as numbers, formulas behind an apostrophe."""
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


def read_csv_field(field: str) -> str:
    """Return the text that ``csv_field`` wrote."""
    is_guarded = field.startswith("'") and csv_field(field[1:]) == field
    return field[1:] if is_guarded else field


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
        value: The object; ``None`` has ``None`` for each.
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
