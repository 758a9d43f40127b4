"""Compares published figures with a study's results. Never imports torch.

A column of a published table is compared with the result table of the same tasks and metric; rows
and columns without a counterpart are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qkvary.literature.figures import PublishedColumn, PublishedFigure, PublishedTable
from qkvary.literature.recomputation import FigureVerdict, recompute_figure
from qkvary.studies.results.summary import (
    PublishedCell,
    PublishedComparison,
    Recomputes,
    ResultTable,
    VariantRow,
)
from qkvary.studies.study import Setting, Study

_RECOMPUTES: Mapping[FigureVerdict, Recomputes] = {
    "equal": "yes",
    "rounding": "rounding",
    "other convention": "other convention",
    "wrong": "no",
    "measured": "not checkable",
    "stated": "not checkable",
}
"""The words that reports use for each verdict."""


def compare_published(
    published: PublishedTable, study: Study, tables: Sequence[ResultTable]
) -> PublishedComparison:
    """Compare a published table with the results of a study."""
    beside = {column.key: _counterpart(column, study, tables) for column in published.columns}
    variants = {row.variant for table in tables for row in table.rows}
    cells = [
        _cell(published, figure, beside[figure.column])
        for figure in published.figures
        if beside[figure.column] is not None and figure.variant in variants
    ]
    rows_without = [figure.row for figure in published.figures if figure.variant not in variants]
    columns_without = [column.title for column in published.columns if not beside[column.key]]
    return PublishedComparison(
        name=published.name,
        title=published.title,
        source=published.source,
        unit=published.unit,
        note=published.note,
        cells=tuple(cells),
        not_compared=(*dict.fromkeys(rows_without), *columns_without),
    )


def _counterpart(
    column: PublishedColumn, study: Study, tables: Sequence[ResultTable]
) -> ResultTable | None:
    """Return the table over the same settings with the same metric, on any split."""
    wanted = {
        setting.name
        for setting in study.settings
        if setting.task.name in column.tasks and _fits(setting, column)
    }
    for table in tables:
        same_metric = column.metric is not None and table.metric.endswith(column.metric)
        same_tasks = set(table.tasks) == set(column.tasks)
        if same_metric and same_tasks and set(table.settings) == wanted:
            return table
    return None


def _fits(setting: Setting, column: PublishedColumn) -> bool:
    """Return whether a setting has the sizes of a column."""
    sizes = {
        "context": getattr(setting.task, "context", None),
        "source": getattr(setting.task, "source", None),
        "d_model": setting.network.d_model,
        "num_layers": setting.network.num_layers,
        "num_heads": setting.network.layers[0].num_heads,
        "steps": setting.training.steps,
    }
    return all(sizes[name] == size for name, size in column.where)


def _cell(
    published: PublishedTable, figure: PublishedFigure, table: ResultTable | None
) -> PublishedCell:
    row: VariantRow | None = None
    if table is not None and figure.variant is not None:
        row = table.row(figure.variant)
    ours = row.mean if row else None
    found = recompute_figure(published, figure)
    number = found.derivation.value if found.derivation else None
    return PublishedCell(
        variant=figure.variant or figure.row,
        column=figure.column,
        published=figure.value,
        published_std=figure.std,
        ours=ours,
        ours_std=row.std_settings if row else None,
        deviation=None if ours is None or figure.value is None else ours - figure.value,
        recomputes=_RECOMPUTES[found.verdict],
        recomputed=number if isinstance(number, float | int) else None,
        note=found.why or figure.note,
    )
