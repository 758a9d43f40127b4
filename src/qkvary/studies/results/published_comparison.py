"""Compares published numbers with a study's results. Never imports torch.

A column of a published table is compared with the result table that has the same tasks and metric.
If the result table has a different metric, the column is compared with the mean, over the runs, of
the column's metric. Rows and columns without a counterpart are listed.
"""

from collections.abc import Sequence

from qkvary.studies.published_tables import PublishedColumn, PublishedFigure, PublishedTable
from qkvary.studies.results.comparisons import average_over_tasks
from qkvary.studies.results.statistics import population_std, repeat_interval
from qkvary.studies.results.summary import PublishedCell, PublishedComparison, ResultTable, RunRow
from qkvary.studies.study import Setting, Study


def compare_published(
    published: PublishedTable, study: Study, tables: Sequence[ResultTable], runs: Sequence[RunRow]
) -> PublishedComparison:
    """Compare a published table with the results of a study."""
    counterparts = {column.key: _counterpart(column, study, tables) for column in published.columns}
    variants = {row.variant for table in tables for row in table.rows}
    cells = [
        _cell(published, figure, *found, runs)
        for figure in published.figures
        if (found := counterparts[figure.column]) is not None and figure.variant in variants
    ]
    rows_without = [figure.row for figure in published.figures if figure.variant not in variants]
    columns_without = [column.title for column in published.columns if not counterparts[column.key]]
    return PublishedComparison(
        name=published.name,
        title=published.title,
        source=published.source,
        unit=published.unit,
        note=published.note,
        cells=tuple(cells),
        not_compared=(*dict.fromkeys(rows_without), *columns_without),
        notes=tuple(
            dict.fromkeys(
                note for found in counterparts.values() if found for note in found[0].notes
            )
        ),
        published_runs=published.runs,
    )


def _counterpart(
    column: PublishedColumn, study: Study, tables: Sequence[ResultTable]
) -> tuple[ResultTable, str] | None:
    """Return the result table with the settings of a published column, and the metric to compare.

    A table that has the column's metric, for any split, is preferred.
    """
    if column.metric is None:
        return None
    wanted = {
        setting.name
        for setting in study.settings
        if setting.task.name in column.tasks and _fits(setting, column)
    }
    same = [
        table
        for table in tables
        if set(table.tasks) == set(column.tasks) and set(table.settings) == wanted
    ]
    for table in same:
        if table.metric.endswith(column.metric):
            return table, table.metric
    return (same[0], f"test_{column.metric}") if same else None


def _fits(setting: Setting, column: PublishedColumn) -> bool:
    """Return whether a setting has the sizes and training options that a published column names."""
    sizes = {
        "context": getattr(setting.task, "context", None),
        "source": getattr(setting.task, "source", None),
        "d_model": setting.network.d_model,
        "num_layers": setting.network.num_layers,
        "num_heads": setting.network.layers[0].num_heads,
        "steps": setting.training.steps,
        "learning_rate": setting.training.optimizer.learning_rate,
    }
    return all(sizes[name] == size for name, size in column.where)


def _cell(
    published: PublishedTable,
    figure: PublishedFigure,
    table: ResultTable,
    metric: str,
    runs: Sequence[RunRow],
) -> PublishedCell:
    tasks: dict[str, str] = {}
    by_seed: dict[int, dict[str, float]] = {}
    by_setting: dict[str, list[float]] = {}
    for run in runs:
        value = dict(run.metrics).get(metric)
        is_used = run.variant == figure.variant and run.selected and run.state == "done"
        if is_used and run.setting in table.settings and value is not None:
            tasks[run.setting] = run.task
            by_seed.setdefault(run.seed, {})[run.setting] = value
            by_setting.setdefault(run.setting, []).append(value)
    means = {name: sum(values) / len(values) for name, values in by_setting.items()}
    ours = average_over_tasks(means, tasks, table.settings)
    each = (average_over_tasks(values, tasks, table.settings) for values in by_seed.values())
    whole = [value for value in each if value is not None]
    repeat = repeat_interval(whole, published.runs) if published.runs else None
    low, high = repeat or (None, None)
    return PublishedCell(
        variant=figure.variant or figure.row,
        column=figure.column,
        published=figure.value,
        published_std=figure.std,
        ours=ours,
        ours_std=population_std([*means.values()]) if len(means) == len(table.settings) else None,
        deviation=None if ours is None or figure.value is None else ours - figure.value,
        recomputes=figure.recomputes,
        recomputed=figure.recomputed,
        note=figure.why or figure.note,
        repeat_low=low,
        repeat_high=high,
    )
