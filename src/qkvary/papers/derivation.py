"""Derivations of published figures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure

Value = float | str
"""A number in the unit of the printed figure, or words and formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The figure under another convention, or with a mistake."""

    value: Value
    """The resulting figure."""
    convention: str
    """A phrase that completes "with ..." for a convention and "by ..." for a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """One recomputed figure."""

    value: Value
    """The value under the paper's convention, or else the plain meaning of its words."""
    formula: str
    """An explanation; the value is not computed from this text."""
    convention: str = ""
    """The counted items and units; empty if there is no choice."""
    spread: tuple[float, float] | None = None
    """The possible range, if the value is computed from rounded figures."""
    others: tuple[Alternative, ...] = ()
    """Alternatives under other conventions, each applied throughout."""
    slips: tuple[Alternative, ...] = ()
    """Alternatives by known mistakes, such as two units in one quotient."""
    holds: bool | None = None
    """Whether the value supports a claim in words."""
    note: str = ""
    """A further remark for the reader."""


Derive = Callable[[PublishedFigure], Derivation | None]
"""Derives a figure of one table; ``None`` if it cannot be recomputed."""
Registry = Mapping[str, Derive]
"""Derivations by table name."""


def by_column(columns: Mapping[str, Derive]) -> Derive:
    """Return a derivation of the figures of the given columns only."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        column = columns.get(figure.column)
        return column(figure) if column else None

    return derive


def by_row(rows: Mapping[str, Callable[[], Derivation]]) -> Derive:
    """Return a derivation of a table with one figure per row."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        row = rows.get(figure.row)
        return row() if row else None

    return derive


def printed_value(table: str, row: str, column: str) -> float:
    """Return a printed number that enters another figure.

    Raises:
        ValueError: if the figure has no number.
    """
    figure = load_published(table).figure(row, column)
    if figure.value is None:
        raise ValueError(
            f"expected a number in {table}, row {row!r}, column {column!r}, got {figure.printed!r}"
        )
    return figure.value


def variant_of(figure: PublishedFigure) -> str:
    """Return the variant of a figure's row.

    Raises:
        ValueError: if the row is not a variant.
    """
    if figure.variant is None:
        raise ValueError(f"expected a row that is a variant, got {figure.row!r}")
    return figure.variant
