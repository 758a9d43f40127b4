"""The tables of a study: the summary's typed values as printed cells.

Every table of results counts done, failed, diverged, damaged and missing runs.
"""

from collections.abc import Callable, Sequence

from qkvary.reports.tables import Cell, Column, Raw, Table, Tone, named, plain
from qkvary.studies.results.observations import count_rows
from qkvary.studies.results.summary import (
    Contrast,
    CostRow,
    Counts,
    Difference,
    Frontier,
    ResultTable,
    Summary,
    VariantRow,
)
from qkvary.text import names, numbers, units

_TONES: dict[str, Tone] = {"better": "better", "worse": "worse"}
ARROWS = {"better": "▲", "worse": "▼"}
"""Marks of supported differences, with the word where there is room."""


def main_tables(summary: Summary) -> list[ResultTable]:
    """Return the tables of the overview: one per task, then the averages over tasks."""
    tasks = [table for table in summary.tables if table.kind == "task"]
    covered = {task for table in tasks for task in table.tasks}
    alone = [
        table
        for table in summary.tables
        if table.kind == "setting" and not covered & set(table.tasks)
    ]
    averages = [table for table in summary.tables if table.kind == "average"]
    return [*tasks, *alone, *averages]


def metric_name(table: ResultTable | Frontier) -> str:
    """Return the name of a table's metric as it is printed."""
    return names.clip(table.metric_title, 40)


def count_words(counts: Counts) -> str:
    """Return the counts of planned runs by state, in words."""
    parts = [f"{counts.done:,}/{counts.planned:,}"]
    for number, word in (
        (counts.failed, "failed"),
        (counts.diverged, "diverged"),
        (counts.damaged, "damaged"),
        (counts.missing, "missing"),
    ):
        if number:
            parts.append(f"{number:,} {word}")
    return "; ".join(parts)


def count_cell(counts: Counts) -> Cell:
    """Return the counts as a cell."""
    return Cell(raw=counts.done, text=count_words(counts), tone="" if counts.complete else "warn")


def decimals_for(table: ResultTable) -> int:
    """Return the decimals that distinguish the rows of a table."""
    means = [row.mean for row in table.rows if row.mean is not None]
    spread = max(means) - min(means) if means else 0.0
    return 3 if spread >= 0.003 or not means else 4


def interval(gap: Difference, decimals: int) -> str:
    """Write an interval in brackets."""
    if gap.low is None or gap.high is None:
        return "no interval"
    return numbers.interval(gap.low, gap.high, decimals, sign=True)


def matrix(summary: Summary) -> Table:
    """Return the overview: variants by tasks, each with mean, spread, difference and counts."""
    tables = main_tables(summary)
    columns = [Column(key="variant", title="variant", numeric=False)]
    columns += [
        Column(
            key=table.name,
            title=names.clip(table.name, 60),
            below=f"{metric_name(table)} {'↑' if table.higher_is_better else '↓'}",
        )
        for table in tables
    ]
    columns.append(Column(key="runs", title="runs", below="done/planned"))
    rows = [
        (
            named(variant),
            *(_matrix_cell(table, variant) for table in tables),
            count_cell(variant_counts(summary, variant)),
        )
        for variant in summary.variants
    ]
    return Table(
        key="overview",
        title="Variants by task",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=(*_matrix_notes(summary), *setting_notes(tables)),
        main=True,
    )


def setting_notes(tables: Sequence[ResultTable]) -> tuple[str, ...]:
    """Return the notes of the settings of tables, each once."""
    return tuple(dict.fromkeys(note for table in tables for note in table.notes))


def _matrix_notes(summary: Summary) -> tuple[str, ...]:
    note = (
        "Mean ± standard deviation over seeds; below it the paired difference to "
        f"{summary.baseline} with its {numbers.percent(summary.method.confidence, 0)} interval. "
        f"{ARROWS['better']} better and {ARROWS['worse']} worse are supported by the data; "
        "without a mark, the data do not distinguish the two."
    )
    return (note,)


def _matrix_cell(table: ResultTable, variant: str) -> Cell:
    row = next((row for row in table.rows if row.variant == variant), None)
    if row is None:
        return plain(None)
    decimals = decimals_for(table)
    text = numbers.fixed(row.mean, decimals)
    if row.mean is not None and row.std_seeds is not None:
        text += f" ± {numbers.fixed(row.std_seeds, decimals)}"
    below: list[str] = []
    tone: Tone = ""
    if row.difference and row.difference.mean is not None:
        arrow = ARROWS.get(row.difference.verdict, "")
        gap = numbers.fixed(row.difference.mean, decimals, True)
        below.append(f"{arrow} {gap} {interval(row.difference, decimals)}".strip())
        tone = _TONES.get(row.difference.verdict, "")
    if not row.counts.complete:
        below.append(count_words(row.counts))
    return Cell(raw=row.mean, text=text, below=tuple(below), tone=tone)


def contrast_table(summary: Summary, key: str) -> Table:
    """Return the planned contrasts: pairs of variants by tables, each with its interval."""
    tables = main_tables(summary)
    number = sum(row.kind != "setting" for one in summary.contrasts for row in one.rows)
    level = numbers.percent(summary.method.confidence, 0)
    corrected = f"corrected for {names.count(number, 'comparison')}"
    columns = [
        Column(
            key=table.name,
            title=names.clip(table.name, 60),
            below=f"{metric_name(table)} {'↑' if table.higher_is_better else '↓'}",
        )
        for table in tables
    ]
    note = (
        "The first variant minus the second, in pairs of the same setting and seed. These "
        f"comparisons are a family of their own, separate from those with {summary.baseline}. "
        f"{ARROWS['better']} better and {ARROWS['worse']} worse are supported by the data."
    )
    return Table(
        key=key,
        title=f"Planned contrasts: paired differences, {level} intervals {corrected}",
        columns=(Column(key="contrast", title="contrast", numeric=False), *columns),
        rows=tuple(
            (
                named(f"{one.variant} against {one.reference}"),
                *(_contrast_cell(one, table) for table in tables),
            )
            for one in summary.contrasts
            if tables
        ),
        notes=(note, *setting_notes(tables)),
    )


def _contrast_cell(contrast: Contrast, table: ResultTable) -> Cell:
    gap = next((row.difference for row in contrast.rows if row.table == table.name), None)
    if gap is None or gap.mean is None:
        return plain(None)
    decimals = decimals_for(table)
    below = [f"{ARROWS.get(gap.verdict, '')} {interval(gap, decimals)}".strip()]
    if gap.detectable is not None:
        below.append(f"detectable {numbers.fixed(gap.detectable, decimals)}")
    if gap.pairs < gap.pairs_planned:
        below.append(f"{gap.pairs} of {gap.pairs_planned} pairs")
    return Cell(
        raw=gap.mean,
        text=numbers.fixed(gap.mean, decimals, True),
        below=tuple(below),
        tone=_TONES.get(gap.verdict, ""),
    )


def variant_counts(summary: Summary, variant: str) -> Counts:
    """Count the planned runs of a variant by state."""
    return count_rows(run for run in summary.runs if run.variant == variant)


_RESULT_COLUMNS = (
    Column(key="variant", title="variant", numeric=False),
    Column(key="runs_done", title="runs", below="done/planned"),
    Column(key="mean", title="mean"),
    Column(key="std_seeds", title="SD", below="over seeds"),
    Column(key="std_settings", title="SD", below="over settings"),
    Column(key="difference", title="difference", below="to the baseline"),
    Column(key="interval", title="interval", below="all comparisons"),
    Column(key="interval_single", title="interval", below="this one alone"),
    Column(key="p_adjusted", title="p", below="adjusted"),
    Column(key="detectable", title="detectable", below="difference"),
    Column(key="verdict", title="the data say", numeric=False),
)


def result_table(table: ResultTable, summary: Summary, key: str) -> Table:
    """Return one table of results in full."""
    decimals = decimals_for(table)
    way = "higher" if table.higher_is_better else "lower"
    pairing = "differences are paired by seed and setting"
    note = f"{names.count(len(table.settings), 'setting')}; {pairing}, baseline {summary.baseline}."
    return Table(
        key=key,
        title=f"{table.name}: {metric_name(table)} ({way} is better)",
        columns=_RESULT_COLUMNS,
        rows=tuple(_result_row(row, decimals, summary.baseline) for row in table.rows),
        notes=(note, *table.notes),
    )


def _result_row(row: VariantRow, decimals: int, baseline: str) -> tuple[Cell, ...]:
    gap = row.difference
    start = (
        named(row.variant),
        count_cell(row.counts),
        plain(row.mean, numbers.fixed(row.mean, decimals)),
        plain(row.std_seeds, numbers.fixed(row.std_seeds, decimals)),
        plain(row.std_settings, numbers.fixed(row.std_settings, decimals)),
    )
    if gap is None:
        what = plain("baseline", tone="quiet") if row.variant == baseline else plain(None)
        return (*start, *(plain(None) for _ in range(5)), what)
    single = numbers.MISSING
    if gap.low_single is not None and gap.high_single is not None:
        single = numbers.interval(gap.low_single, gap.high_single, decimals, sign=True)
    return (
        *start,
        plain(gap.mean, numbers.fixed(gap.mean, decimals, True)),
        plain(interval(gap, decimals)),
        plain(single),
        plain(gap.p_adjusted, probability(gap.p_adjusted)),
        plain(gap.detectable, numbers.fixed(gap.detectable, decimals)),
        plain(gap.verdict, tone=_TONES.get(gap.verdict, "quiet")),
    )


def probability(value: float | None) -> str:
    """Write a p-value."""
    if value is not None and value < 0.001:
        return "< 0.001"
    return numbers.fixed(value, 3)


def frontier_table(frontier: Frontier, key: str, notes: Sequence[str] = ()) -> Table:
    """Return the points of a chart of quality against cost, with the notes of its settings."""
    write = cost_writer(frontier.axis)
    rows = tuple(
        (
            named(point.variant),
            plain(point.cost, write(point.cost)),
            plain(point.quality, numbers.fixed(point.quality, 4)),
            Cell(
                raw=point.standing,
                text=names.clip(point.sentence, 300),
                tone="" if point.standing == "frontier" else "quiet",
            ),
        )
        for point in frontier.points
    )
    left_out = [names.clip(name, 60) for name in frontier.left_out]
    return Table(
        key=key,
        title=f"{frontier.table}: {metric_name(frontier)} against {frontier.axis_title}",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key=frontier.axis, title=frontier.axis_title),
            Column(key="quality", title=metric_name(frontier)),
            Column(key="standing", title="is it on the frontier?", numeric=False),
        ),
        rows=rows,
        notes=(
            *(
                [f"Without a finished run or without this cost: {names.listed(left_out)}."]
                * bool(left_out)
            ),
            *notes,
        ),
    )


def cost_writer(axis: str) -> Callable[[float], str]:
    """Return the function that writes a cost."""
    return {"cache_bytes_per_token": units.data_size, "training_seconds": units.duration}.get(
        axis, numbers.whole
    )


_UNSOLVED = "A run that never did counts with its last step in the mean and as later in the median."


def solving_table(table: ResultTable, key: str) -> Table:
    """Return the number of runs that solved the task, and their steps."""
    rows: list[tuple[Cell, ...]] = []
    for row in table.rows:
        solving = row.solving
        if solving is None:
            continue
        gap = solving.difference
        share = ""
        if solving.proportion_low is not None and solving.proportion_high is not None:
            ends = (solving.proportion_low, solving.proportion_high)
            share = " to ".join(numbers.percent(end, 0) for end in ends)
        median = numbers.whole(solving.median_steps)
        if solving.median_steps is None:
            median = f"> {solving.horizon:,}"
        rows.append(
            (
                named(row.variant),
                count_cell(row.counts),
                plain(solving.solved, f"{solving.solved} of {solving.runs}"),
                plain(share or None),
                plain(solving.median_steps, median),
                plain(solving.restricted_mean_steps, numbers.whole(solving.restricted_mean_steps)),
                plain(
                    gap.mean if gap else None,
                    numbers.fixed(gap.mean, 0, True) if gap else numbers.MISSING,
                ),
                plain(interval(gap, 0) if gap else None),
                plain(
                    gap.verdict if gap else None,
                    tone=_TONES.get(gap.verdict, "quiet") if gap else "quiet",
                ),
            )
        )
    first = next((row.solving for row in table.rows if row.solving), None)
    threshold = (
        ""
        if first is None
        else f" A task is solved when its validation metric reaches {first.threshold:g}."
    )
    return Table(
        key=key,
        title=f"{table.name}: steps until solved",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="runs_done", title="runs", below="done/planned"),
            Column(key="solved", title="solved"),
            Column(key="proportion", title="share", below="95 % interval"),
            Column(key="median_steps", title="median", below="steps"),
            Column(key="restricted_mean_steps", title="mean", below="steps, at most the limit"),
            Column(key="difference_steps", title="difference", below="of the means"),
            Column(key="interval", title="interval", below="all comparisons"),
            Column(key="verdict", title="the data say", numeric=False),
        ),
        rows=tuple(rows),
        notes=(f"Fewer steps are better.{threshold} {_UNSOLVED}",),
    )


def cost_table(tables: Sequence[ResultTable], key: str) -> Table:
    """Return the costs of the networks, once for tasks with equal networks."""
    groups = _same_costs([table for table in tables if table.kind != "average"] or list(tables))
    measured = any(row.utilization is not None for table in tables for row in table.rows)
    parts = list(
        dict.fromkeys(
            name
            for group in groups
            for row in group[0].rows
            if row.costs
            for name, _ in row.costs.parameters
            if name != "total"
        )
    )
    return Table(
        key=key,
        title="What a network costs",
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="task", title="task", numeric=False),
            Column(key="parameters_total", title="parameters", below="total"),
            *(
                Column(key=f"parameters_{part}", title="parameters", below=part.replace("_", " "))
                for part in parts
            ),
            Column(key="macs_per_token", title="MACs", below="per token"),
            Column(key="macs_per_sequence", title="MACs", below="per sequence"),
            Column(key="cache_bytes_per_token", title="cache", below="per token"),
            Column(key="training_seconds", title="training", below="per run, mean"),
            *((_UTILIZATION,) if measured else ()),
        ),
        rows=tuple(
            (
                *_cost_row(row, costs, group, parts),
                *((_utilization_cell(row, group),) if measured else ()),
            )
            for group in groups
            for row in group[0].rows
            if (costs := row.costs)
        ),
        notes=(
            "MACs are multiply-accumulate operations of one forward pass; FLOPs are twice.",
            *((_UTILIZATION_NOTE,) if measured else ()),
        ),
    )


_UTILIZATION = Column(key="utilization", title="utilization", below="mean")
_UTILIZATION_NOTE = (
    "Utilization is the arithmetic of training, without hidden pairs and recomputation, over that "
    "of one large product on the same device at the end of the run."
)


def _utilization_cell(row: VariantRow, group: Sequence[ResultTable]) -> Cell:
    shares = [
        other.utilization
        for table in group
        for other in table.rows
        if other.variant == row.variant and other.utilization is not None
    ]
    share = sum(shares) / len(shares) if shares else None
    return plain(share, numbers.percent(share, 0))


def _same_costs(tables: Sequence[ResultTable]) -> list[list[ResultTable]]:
    groups: dict[tuple[object, ...], list[ResultTable]] = {}
    for table in tables:
        signature = tuple((row.variant, row.costs) for row in table.rows)
        groups.setdefault(signature, []).append(table)
    return list(groups.values())


def _cost_row(
    row: VariantRow, costs: CostRow, group: Sequence[ResultTable], parts: Sequence[str]
) -> tuple[Cell, ...]:
    by_part = dict(costs.parameters)
    times = [
        other.training_seconds
        for table in group
        for other in table.rows
        if other.variant == row.variant and other.training_seconds is not None
    ]
    time = sum(times) / len(times) if times else None
    return (
        named(row.variant),
        named(", ".join(table.name for table in group)),
        plain(costs.parameters_total, numbers.whole(costs.parameters_total)),
        *(plain(by_part.get(part), numbers.whole(by_part.get(part))) for part in parts),
        plain(costs.macs_per_token, numbers.compact(costs.macs_per_token)),
        plain(costs.macs_per_sequence, numbers.compact(costs.macs_per_sequence)),
        plain(costs.cache_bytes_per_token, _cache(costs.cache_bytes_per_token)),
        plain(time, units.duration(time)),
    )


def _cache(value: Raw) -> str:
    return "none" if value is None or isinstance(value, str) else units.data_size(value)
