"""Tables of published numbers, for comparison with the results of a study.

A study's definition supplies the tables. Never imports torch.
"""

from dataclasses import dataclass, field
from typing import Literal

from qkvary.arch.canonical import ADDED_LATER, stored

Recomputes = Literal["yes", "no", "rounding", "other convention", "not checkable"]


@stored("PublishedColumn")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedColumn:
    """One column of a published table."""

    key: str
    title: str
    unit: str
    tasks: tuple[str, ...]
    """The tasks of this package to which the column corresponds. A column of averages has several
    tasks."""
    metric: str | None
    """The metric of ``tasks`` to compare, e.g. ``accuracy``; None if no metric is comparable."""
    where: tuple[tuple[str, float | str], ...]
    """The fields of a setting that choose the settings of the column (``context``, ``d_model``,
    ``num_layers``, ``num_heads``, ``steps``, ``learning_rate``, ``source``); empty for an average
    over all settings of the tasks."""
    variants: tuple[str, ...]
    """The variants of the column; empty if the rows of the table stand for variants."""
    stated: bool
    """Whether the column has settings or unsupported claims. Other columns have measured or derived
    numbers."""


@stored("PublishedFigure")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One number as printed in a published table."""

    row: str
    """The label of the row in the paper."""
    variant: str | None
    """The canonical label of the variant in this row, or None if the row is not a variant."""
    column: str
    printed: str
    """The text as printed, e.g. ``+0.7%``; ``-`` if the paper prints none."""
    value: float | None
    """The number in the unit of the column; None for words and formulas."""
    std: float | None
    note: str
    """A remark on the number."""
    recomputes: Recomputes = "not checkable"
    """Whether other numbers in the same document give this number."""
    recomputed: float | None = None
    """The recomputed number."""
    why: str = ""
    """Why the recomputed number differs. Empty if the numbers are equal, or none was recomputed."""
    in_code: bool = field(default=False, metadata=ADDED_LATER)
    """Whether the number is from the public code, because the text does not print it."""


@stored("PublishedTable")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One table of a paper, poster or notebook."""

    name: str
    title: str
    paper: str
    place: str
    """The location in the source, e.g. ``Table 4``."""
    arxiv: str | None
    unit: str
    columns: tuple[PublishedColumn, ...]
    rows: tuple[str, ...]
    figures: tuple[PublishedFigure, ...]
    note: str
    runs: int | None = None
    """The number of runs over which each number is a mean."""

    @property
    def source(self) -> str:
        """The paper, and the place of the table in the paper, on one line."""
        where = f"{self.paper}, {self.place}"
        return f"{where} (arXiv {self.arxiv})" if self.arxiv else where

    def figure(self, row: str, column: str) -> PublishedFigure:
        """Return the number in a row and column; a KeyError lists the rows and columns."""
        for figure in self.figures:
            if (figure.row, figure.column) == (row, column):
                return figure
        raise KeyError(
            f"no number in row {row!r}, column {column!r} of {self.name}; rows: {list(self.rows)}; "
            f"columns: {[one.key for one in self.columns]}"
        )
