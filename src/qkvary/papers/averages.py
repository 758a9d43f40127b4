"""Derives the averages in Tables 2 and 3 of papers 1 and 2, and those in the public notebook.

Paper 1 is "Do Transformers Need Three Projections?" and paper 2 is "Key-Value Transformer", the
earlier paper. The public notebook belongs to paper 2.
"""

import math
from collections.abc import Mapping, Sequence

from qkvary.papers.derivation import (
    Alternative,
    Derivation,
    Derive,
    Registry,
    by_column,
    printed_value,
)
from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure
from qkvary.text.printed import printed_interval

SYNTHETIC = ("reverse", "sort", "sub", "swap", "copy")
VISION = ("mnist", "fashion_mnist", "cifar10", "cifar100", "anomaly")
STORED = "key-value-notebook-synthetic"
RATES = ("1e-3", "1e-4")
LENGTHS = (16, 32, 64, 128)

_IN_NOTEBOOK = ("QKV", "Q=K-V", "(Q=K-V)+")
_EXCHANGED: Mapping[str, str] = {"swap": "sub", "sub": "swap"}
_MEAN = "mean over configurations, as the public notebook stores it"


def average(table: str, columns: Sequence[str]) -> Derive:
    """Return a function that derives a figure as the mean of other columns in the same row."""

    def derive(figure: PublishedFigure) -> Derivation:
        parts = [load_published(table).figure(figure.row, column) for column in columns]
        intervals = [printed_interval(part) for part in parts]
        return Derivation(
            value=_mean([part.value or 0.0 for part in parts]),
            formula=f"mean of the row's {len(parts)} figures",
            spread=(_mean([low for low, _ in intervals]), _mean([high for _, high in intervals])),
        )

    return derive


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _stored(figure: PublishedFigure) -> Derivation | None:
    """Derive a mean of a table from the mean that the notebook stores for this variant and task."""
    if figure.variant not in _IN_NOTEBOOK:
        return None
    return Derivation(value=_in_notebook(figure.variant, figure.column), formula=_MEAN)


def _exchanged(figure: PublishedFigure) -> Derivation | None:
    """Derive a figure of swap or sub; paper 2's table has these two columns exchanged."""
    if figure.variant is None:
        return None
    other = _EXCHANGED[figure.column]
    return Derivation(
        value=_in_notebook(figure.variant, figure.column),
        formula=_MEAN,
        slips=(
            Alternative(
                value=_in_notebook(figure.variant, other),
                convention=f"taking the figure of {other}, because the columns are exchanged",
            ),
        ),
    )


def _in_notebook(variant: str, task: str) -> float:
    return printed_value(STORED, variant, task)


def _mean_of_settings(quantity: str) -> Derive:
    columns = [f"{quantity}_{rate}_{length}" for rate in RATES for length in LENGTHS]
    return average("key-value-notebook-numbers", columns)


def _mean_of_runs(table: str, prefix: str) -> Derive:
    return average(table, [f"{prefix}_run_{run}" for run in (0, 1)])


TABLES: Registry = {
    "three-projections-table-2": by_column(
        {
            **dict.fromkeys(SYNTHETIC, _stored),
            "average": average("three-projections-table-2", SYNTHETIC),
        }
    ),
    "three-projections-table-3": by_column(
        {"average": average("three-projections-table-3", VISION)}
    ),
    "key-value-table-2": by_column(
        {
            **dict.fromkeys(("reverse", "sort", "copy"), _stored),
            **dict.fromkeys(("swap", "sub"), _exchanged),
            "average": average("key-value-table-2", SYNTHETIC),
        }
    ),
    "key-value-table-3": by_column({"average": average("key-value-table-3", VISION)}),
    STORED: by_column({"average": average(STORED, SYNTHETIC)}),
    "key-value-notebook-numbers": by_column(
        {
            "loss_mean": _mean_of_settings("loss"),
            "accuracy_mean": _mean_of_settings("accuracy"),
        }
    ),
    "key-value-notebook-characters": by_column(
        {"validation": _mean_of_runs("key-value-notebook-characters", "validation")}
    ),
    "key-value-notebook-characters-1000": by_column(
        {"early": _mean_of_runs("key-value-notebook-characters-1000", "early")}
    ),
}
