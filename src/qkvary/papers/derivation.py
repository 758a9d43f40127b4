"""Data classes and helper functions for recomputed published numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure

Value = float | str
"""A number in the unit of the published number, or a text with words or formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The value of a figure under another convention, or with a known mistake."""

    value: Value
    """The figure under the other convention or with the mistake."""
    convention: str
    """The other convention, worded to follow "with"; or the mistake, worded to follow "by"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """A recomputed figure, with its formula and convention."""

    value: Value
    """The figure under the paper's convention. If the paper states no convention, its words are
    taken literally."""
    formula: str
    """Text that describes the computation; nothing is computed from this text."""
    convention: str = ""
    """The counted quantity and its unit; empty if only one convention is possible."""
    spread: tuple[float, float] | None = None
    """The range of possible values if the inputs are rounded; None for exact inputs."""
    others: tuple[Alternative, ...] = ()
    """The figures under other conventions."""
    slips: tuple[Alternative, ...] = ()
    """The figures that result from known mistakes, such as dividing MB by MiB."""
    holds: bool | None = None
    """For a claim in words, True if the value supports the claim; None for a claimed number."""
    note: str = ""
    """An additional remark in the report."""


Derive = Callable[[PublishedFigure], Derivation | None]
"""Function that derives a figure of a table; it returns None for a figure without a formula."""
Registry = Mapping[str, Derive]
"""The function that derives each table's figures, by the name of the table."""


def by_column(columns: Mapping[str, Derive]) -> Derive:
    """Return a function that derives each figure whose column is in ``columns``, and no others."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        column = columns.get(figure.column)
        return column(figure) if column else None

    return derive


def by_row(rows: Mapping[str, Callable[[], Derivation]]) -> Derive:
    """Return a function that derives each figure whose row is in ``rows``, and no others.

    Each of these rows must have only one figure.
    """

    def derive(figure: PublishedFigure) -> Derivation | None:
        row = rows.get(figure.row)
        return row() if row else None

    return derive


def printed_value(table: str, row: str, column: str) -> float:
    """Return a printed number, for use in the derivation of another figure."""
    figure = load_published(table).figure(row, column)
    if figure.value is None:
        raise ValueError(
            f"expected a number in {table}, row {row!r}, column {column!r}, got {figure.printed!r}"
        )
    return figure.value


def variant_of(figure: PublishedFigure) -> str:
    """Return the variant of a figure's row."""
    if figure.variant is None:
        raise ValueError(f"expected the row of a variant, got {figure.row!r}")
    return figure.variant
