"""Derivations of published numbers: what a recomputed number consists of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure

Value = float | str
"""A number in the unit of the published number, or words and formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The value of a figure under another convention, or with a known mistake."""

    value: Value
    """The figure under this alternative."""
    convention: str
    """The difference, in words that follow "with" (a convention) or "by" (a mistake)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """One recomputed figure."""

    value: Value
    """The figure under the paper's convention. If the paper states no convention, its words have
    their plain meaning."""
    formula: str
    """How the figure is computed, for readers; nothing is computed from this text."""
    convention: str = ""
    """What is counted and in which unit; empty if there is no choice."""
    spread: tuple[float, float] | None = None
    """The range of possible values if the inputs are rounded; None if they are exact."""
    others: tuple[Alternative, ...] = ()
    """The figures under other conventions."""
    slips: tuple[Alternative, ...] = ()
    """The figures that result from known mistakes, such as dividing MB by MiB."""
    holds: bool | None = None
    """Whether the value supports a claim in words; None if the claim is a number."""
    note: str = ""
    """A further remark for the reader."""


Derive = Callable[[PublishedFigure], Derivation | None]
"""Derives a figure of a table, or returns ``None`` if the figure cannot be recomputed."""
Registry = Mapping[str, Derive]
"""The function that derives each table's figures, by the name of the table."""


def by_column(columns: Mapping[str, Derive]) -> Derive:
    """Return a function that derives the published numbers in the given columns only."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        column = columns.get(figure.column)
        return column(figure) if column else None

    return derive


def by_row(rows: Mapping[str, Callable[[], Derivation]]) -> Derive:
    """Return a function that derives the published numbers of a table with one number per row."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        row = rows.get(figure.row)
        return row() if row else None

    return derive


def printed_value(table: str, row: str, column: str) -> float:
    """Return a printed number from which another figure is derived."""
    figure = load_published(table).figure(row, column)
    if figure.value is None:
        raise ValueError(
            f"expected a number in {table}, row {row!r}, column {column!r}, got {figure.printed!r}"
        )
    return figure.value


def variant_of(figure: PublishedFigure) -> str:
    """Return the variant of a figure's row."""
    if figure.variant is None:
        raise ValueError(f"expected a row that is a variant, got {figure.row!r}")
    return figure.variant
