"""Tables as values: the page, the CSV, the Markdown and the terminal print the same cells.

This module does not know which tables exist.
"""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from qkvary.text import names, numbers

Raw = str | int | float | bool | None
Tone = Literal["", "better", "worse", "quiet", "warn"]

_DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a table: a value and its printed form."""

    raw: Raw
    """The unrounded value, for the CSV file."""
    text: str
    """The text for all other formats."""
    below: tuple[str, ...] = ()
    """Further lines in small type; they are joined to the text if only one line fits."""
    tone: Tone = ""
    name: bool = False
    """Whether a user chose the text. Pages isolate such a text from the text around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    key: str
    """The header in the CSV file, with units last."""
    title: str
    """The header in other formats."""
    numeric: bool = True
    below: str = ""
    """A second line of the header in small type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """The part of a table that the terminal prints by default, with the first note."""

    columns: tuple[str, ...] = ()
    """The keys of the columns to show; all if empty."""
    rows: int | None = None
    """Number of rows to show, from the first; all if ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with its title and notes."""

    key: str
    """The name of the table's file and page element."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    main: bool = False
    """Whether this is the main table of its page. A main table is larger and has no title."""
    brief: Brief | None = None
    """The part that the terminal prints by default; ``None`` for all."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"expected {len(self.columns)} cells in each row of {self.key!r}, "
                    f"got {len(row)}"
                )


def named(text: str, mark: str = "") -> Cell:
    """Return a cell with a name. ``mark`` follows the name in print; the CSV file omits it."""
    return Cell(raw=text, text=names.clip(text + mark), name=True)


def plain(raw: Raw, text: str | None = None, tone: Tone = "") -> Cell:
    """Return a cell; if no text is given, the raw value is printed."""
    if text is None:
        text = numbers.MISSING if raw is None else str(raw)
    return Cell(raw=raw, text=text, tone=tone)


def clipped(text: str, length: int, tone: Tone = "", *, name: bool = False) -> Cell:
    """Return a cell whose long text is shortened in print."""
    return Cell(raw=text, text=names.clip(text, length) or numbers.MISSING, tone=tone, name=name)


@dataclass(frozen=True, slots=True)
class Field:
    """A column, and the function that makes its cell from an item."""

    column: Column
    cell: Callable[[Any], Cell]


def number(
    path: str,
    title: str | None = None,
    write: Callable[[Any], str | Cell] = plain,
    *,
    below: str = "",
    numeric: bool = True,
) -> Field:
    """Return a column of numbers; ``write`` turns a number into a text or a cell.

    ``path`` names the attribute that holds the number, as in :func:`look_up`. It is also the
    header of the column in the CSV, unless ``key=path`` names another header. ``title`` is the
    header in all other formats.
    """
    key, _, path = path.rpartition("=")
    key = key or path

    def cell(item: object) -> Cell:
        value = look_up(item, path)
        if isinstance(value, Cell):
            return value
        written = write(value)
        return written if isinstance(written, Cell) else plain(value, written)

    return Field(
        Column(key=key, title=key if title is None else title, below=below, numeric=numeric), cell
    )


word = partial(number, numeric=False)
"""Like :func:`number`, for a column of words."""
label = partial(word, write=named)
"""Like :func:`number`, for a column of names."""


def tabulate(
    key: str,
    title: str,
    items: Iterable[object],
    *fields: Field,
    notes: Iterable[str] = (),
    main: bool = False,
    brief: Brief | None = None,
) -> Table:
    """Return a table with a row for each item."""
    return Table(
        key=key,
        title=title,
        columns=tuple(field.column for field in fields),
        rows=tuple(tuple(field.cell(item) for field in fields) for item in items),
        notes=tuple(notes),
        main=main,
        brief=brief,
    )


def shorten(table: Table) -> Table:
    """Return the part of a table that the terminal prints by default."""
    part = table.brief
    if part is None:
        return table
    wanted = part.columns or [column.key for column in table.columns]
    places = [place for place, one in enumerate(table.columns) if one.key in wanted]
    left_out = 0 if part.rows is None else max(0, len(table.rows) - part.rows)
    more = (f"and {names.count(left_out, 'more row')}",) if left_out else ()
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[place] for place in places),
        rows=tuple(
            tuple(dataclasses.replace(row[place], below=()) for place in places)
            for row in table.rows[: part.rows]
        ),
        notes=(*more, *table.notes[:1]),
    )


def csv_field(value: Raw) -> str:
    """Return a value as a CSV field.

    If a spreadsheet would run the field as a formula, the field gets a leading apostrophe.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = names.clean(value)
    is_dangerous = any(one.startswith(_DANGEROUS) for one in (text, text.lstrip(" \n")))
    return f"'{text}" if is_dangerous else text


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


def look_up(value: object, path: str) -> Any:
    """Return an attribute of a value or an entry of a mapping.

    If the value is ``None``, return ``None``. The path ``old.inner`` is an attribute of an
    attribute; the empty path gives the value itself.
    """
    found: Any = value
    for part in path.split(".") if path else ():
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(part)
        else:
            found = None if found is None else getattr(found, part)
    return found


def pick(value: object, wanted: str) -> dict[str, Any]:
    """Return the attributes of a value that the paths in ``wanted`` name.

    The paths are separated by spaces. ``new=old.inner`` renames an attribute.
    """
    pairs = (name.rpartition("=") for name in wanted.split())
    return {new or path: look_up(value, path) for new, _, path in pairs}


def dataset(key: str, rows: Iterable[Mapping[str, Raw]]) -> Table:
    """Return a table of unrounded values from rows that all have the same keys."""
    filled = list(rows)
    return Table(
        key=key,
        title=key,
        columns=tuple(Column(key=name, title=name) for name in (filled[0] if filled else ())),
        rows=tuple(tuple(plain(value) for value in row.values()) for row in filled),
    )
