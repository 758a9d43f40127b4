"""What a published figure should be, and how that is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkvary.literature.figures import PublishedFigure, load_published

Value = float | str
"""A number in the unit of the printed figure, or words and formulas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a figure becomes under another convention, or by a slip."""

    value: Value
    """The figure then."""
    convention: str
    """Completes "with ..." for a convention and "by ..." for a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """One figure, recomputed."""

    value: Value
    """Under the convention that the paper states, or else the plain meaning of its words."""
    formula: str
    """For people; the value does not come from this text."""
    convention: str = ""
    """What is counted, in which units; empty where there is nothing to choose."""
    spread: tuple[float, float] | None = None
    """What the value may be where it is made of rounded figures."""
    others: tuple[Reading, ...] = ()
    """Under other conventions, each one applied to everything that enters the figure."""
    slips: tuple[Reading, ...] = ()
    """By mistakes that are known to have been made, such as two units in one quotient."""
    holds: bool | None = None
    """Of a claim in words: whether the value bears it out."""
    note: str = ""
    """What else the reader of the figure must know."""


Derive = Callable[[PublishedFigure], Derivation | None]
"""What a figure of one table should be; ``None`` where nothing can be recomputed."""
Registry = Mapping[str, Derive]
"""By the name of the table."""


def by_column(columns: Mapping[str, Derive]) -> Derive:
    """Return what derives the figures of the given columns and no others."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        column = columns.get(figure.column)
        return column(figure) if column else None

    return derive


def by_row(rows: Mapping[str, Callable[[], Derivation]]) -> Derive:
    """Return what derives a table of single figures, one per row."""

    def derive(figure: PublishedFigure) -> Derivation | None:
        row = rows.get(figure.row)
        return row() if row else None

    return derive


def printed_value(table: str, row: str, column: str) -> float:
    """Return a printed number that another figure is made of.

    Raises:
        ValueError: if the figure has no number.
    """
    figure = load_published(table).figure(row, column)
    if figure.value is None:
        raise ValueError(
            f"expected a number in {table}, row {row!r}, column {column!r}, got {figure.printed!r}"
        )
    return figure.value
