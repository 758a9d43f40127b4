"""The tables of a study: the summary's typed values as printed cells.

Every table of results counts done, failed, diverged, damaged and missing runs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qkvary.reports.tables import (
    Cell,
    Field,
    Table,
    Tone,
    label,
    named,
    number,
    pick,
    plain,
    tabulate,
    word,
)
from qkvary.studies.results.observations import count
from qkvary.studies.results.summary import (
    Contrast,
    Counts,
    Difference,
    Frontier,
    ResultTable,
    Summary,
    VariantRow,
)
from qkvary.text import names, numbers

_TONES: dict[str, Tone] = {"better": "better", "worse": "worse"}
ARROWS = {"better": "▲", "worse": "▼"}
"""Symbols for differences that the data support."""


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
    """Return the printed name of a table's metric."""
    return names.clip(table.metric_title, 40)


def count_words(counts: Counts) -> str:
    """Return the counts of planned runs by state, in words."""
    parts = [f"{counts.done:,}/{counts.planned:,}"]
    for state in ("failed", "diverged", "damaged", "missing"):
        runs = getattr(counts, state)
        if runs:
            parts.append(f"{runs:,} {state}")
    return "; ".join(parts)


def count_cell(counts: Counts) -> Cell:
    """Return a table cell with the counts of runs. If a run is not done, the cell is a warning."""
    return Cell(raw=counts.done, text=count_words(counts), tone="" if counts.complete else "warn")


def decimals_for(table: ResultTable) -> int:
    """Return the number of decimals that distinguish the rows of a table."""
    means = [row.mean for row in table.rows if row.mean is not None]
    spread = max(means) - min(means) if means else 0.0
    return 3 if spread >= 0.003 or not means else 4


def interval(gap: Difference, decimals: int) -> str:
    """Write an interval in brackets."""
    if gap.low is None or gap.high is None:
        return "no interval"
    return numbers.interval(gap.low, gap.high, decimals, sign=True)


def matrix(summary: Summary, tables: Sequence[ResultTable], key: str, title: str) -> Table:
    """Return variants by tables of results, each with mean, spread, difference and counts."""
    note = (
        "Each cell shows the mean ± the standard deviation over seeds and, beneath it, the paired "
        f"difference from {summary.baseline} with its "
        f"{numbers.percent(summary.method.confidence, 0)} interval. {ARROWS['better']} means that "
        f"the data show the variant to be better, {ARROWS['worse']} that they show it to be worse. "
        f"Without a mark, the data do not distinguish the variant from {summary.baseline}."
    )
    return tabulate(
        key,
        title,
        summary.variants,
        label("variant="),
        *(
            _metric_column(table, partial(_matrix_cell, table, is_counted=len(tables) > 1))
            for table in tables
        ),
        number(
            "runs=",
            write=lambda variant: count_cell(variant_counts(summary, variant)),
            below="done/planned",
        ),
        notes=(note, *setting_notes(tables)),
        main=True,
    )


def _metric_column(table: ResultTable, write: Callable[[Any], Cell]) -> Field:
    below = f"{metric_name(table)} {'↑' if table.higher_is_better else '↓'}"
    return number(f"{table.name}=", names.clip(table.name, 60), write, below=below)


def setting_notes(tables: Sequence[ResultTable]) -> tuple[str, ...]:
    """Return the notes that explain the settings of these tables.

    A note that several tables share is returned only once.
    """
    return tuple(dict.fromkeys(note for table in tables for note in table.notes))


def _matrix_cell(table: ResultTable, variant: str, *, is_counted: bool) -> Cell:
    row = _find_row(table, variant)
    if row is None:
        return plain(None)
    decimals, gap = decimals_for(table), row.difference
    text = numbers.fixed(row.mean, decimals)
    if row.mean is not None and row.std_seeds is not None:
        text += f" ± {numbers.fixed(row.std_seeds, decimals)}"
    below: list[str] = []
    tone: Tone = ""
    if gap and gap.mean is not None:
        mean = numbers.fixed(gap.mean, decimals, True)
        below.append(f"{ARROWS.get(gap.verdict, '')} {mean} {interval(gap, decimals)}".strip())
        tone = _TONES.get(gap.verdict, "")
    if is_counted and not row.counts.complete:
        below.append(count_words(row.counts))
    return Cell(raw=row.mean, text=text, below=tuple(below), tone=tone)


def _find_row(table: ResultTable, variant: str) -> VariantRow | None:
    return next((row for row in table.rows if row.variant == variant), None)


def contrast_table(summary: Summary) -> Table:
    """Return the planned contrasts.

    There is one row for each pair of variants and one column for each table of results. A cell has
    the difference with its interval.
    """
    tables = main_tables(summary)
    comparisons = sum(row.kind != "setting" for one in summary.contrasts for row in one.rows)
    level = numbers.percent(summary.method.confidence, 0)
    corrected = f"corrected for {names.count(comparisons, 'comparison')}"
    note = (
        "Differences are the first variant minus the second variant, in pairs of the same setting "
        "and seed. These comparisons are adjusted separately from the comparisons with "
        f"{summary.baseline}. {ARROWS['better']} means that the data show the first variant to be "
        f"better, {ARROWS['worse']} that they show it to be worse."
    )
    return tabulate(
        "contrasts",
        f"Planned contrasts: paired differences, {level} intervals {corrected}",
        summary.contrasts if tables else (),
        word("contrast=", write=lambda one: named(f"{one.variant} against {one.reference}")),
        *(_metric_column(table, partial(_contrast_cell, table)) for table in tables),
        notes=(note, *setting_notes(tables)),
    )


def _contrast_cell(table: ResultTable, contrast: Contrast) -> Cell:
    gap = next((row.difference for row in contrast.rows if row.table == table.name), None)
    if gap is None or gap.mean is None:
        return plain(None)
    decimals = decimals_for(table)
    return Cell(
        raw=gap.mean,
        text=numbers.fixed(gap.mean, decimals, True),
        below=(f"{ARROWS.get(gap.verdict, '')} {interval(gap, decimals)}".strip(),),
        tone=_TONES.get(gap.verdict, ""),
    )


def variant_counts(summary: Summary, variant: str) -> Counts:
    """Count the planned runs of a variant by state."""
    return count(run for run in summary.runs if run.variant == variant)


def solving_table(summary: Summary, tables: Sequence[ResultTable]) -> Table:
    """Return the steps that the variants took to solve each task, and the runs that solved it."""
    solvable = [
        table
        for table in tables
        if table.kind != "average" and any(row.solving for row in table.rows)
    ]
    note = (
        "Each cell shows the median number of steps over seeds and, beneath it, how many runs "
        "solved the task. A task is solved when its validation metric reaches the threshold. "
        "“Every comparison in words” says which differences in steps the data support."
    )
    return tabulate(
        "solving",
        "Steps until solved",
        summary.variants if solvable else (),
        label("variant="),
        *(
            number(
                f"{table.name}=",
                names.clip(table.name, 60),
                partial(_solving_cell, table),
                below=_threshold(table),
            )
            for table in solvable
        ),
        notes=(note,),
        main=True,
    )


def _threshold(table: ResultTable) -> str:
    thresholds = {row.solving.threshold for row in table.rows if row.solving}
    return f"threshold {thresholds.pop():g}" if len(thresholds) == 1 else ""


def _solving_cell(table: ResultTable, variant: str) -> Cell:
    row = _find_row(table, variant)
    if row is None or row.solving is None:
        return plain(None)
    steps, solving = row.solving.median_steps, row.solving
    text = f"> {solving.horizon:,}" if steps is None else numbers.whole(steps)
    below = f"{solving.solved} of {solving.runs} solved"
    return Cell(raw=steps, text=text, below=(below,))


def cost_table(tables: Sequence[ResultTable]) -> Table:
    """Return the costs of the networks; tasks with equal networks share their rows."""
    groups: dict[object, list[ResultTable]] = {}
    for table in [one for one in tables if one.kind != "average"] or tables:
        signature = tuple((row.variant, row.costs) for row in table.rows)
        groups.setdefault(signature, []).append(table)
    rows = [
        {
            "task": ", ".join(table.name for table in group),
            "parts": dict(row.costs.parameters),
            **pick(
                row,
                "variant parameters_total=costs.parameters_total macs=costs.macs_per_token "
                "sequence=costs.macs_per_sequence cache=costs.cache_bytes_per_token",
            ),
            "seconds": _mean_seconds(group, row.variant),
        }
        for group in groups.values()
        for row in group[0].rows
        if row.costs
    ]
    parts = dict.fromkeys(
        name
        for group in groups.values()
        for row in group[0].rows
        if row.costs
        for name, _ in row.costs.parameters
        if name != "total"
    )
    return tabulate(
        "costs",
        "What a network costs",
        rows,
        label("variant"),
        label("task"),
        number("parameters_total", "parameters", numbers.whole, below="total"),
        *(
            number(
                f"parameters_{part}=parts.{part}",
                "parameters",
                numbers.whole,
                below=part.replace("_", " "),
            )
            for part in parts
        ),
        number("macs_per_token=macs", "MACs", numbers.compact, below="per token"),
        number("macs_per_sequence=sequence", "MACs", numbers.compact, below="per sequence"),
        number("cache_bytes_per_token=cache", "cache", _cache, below="per token"),
        number("training_seconds=seconds", "training", numbers.duration, below="per run, mean"),
        notes=(
            (
                "MACs are multiply-accumulate operations of one forward pass; the number of FLOPs "
                "is twice the number of MACs."
            ),
            *(
                ("A task with several settings has the mean costs of their networks.",)
                if any(len(table.settings) > 1 for group in groups.values() for table in group)
                else ()
            ),
        ),
    )


def _mean_seconds(group: Sequence[ResultTable], variant: str) -> float | None:
    """Return the mean training time of a variant over tables, or None if no table has it."""
    rows = [row for table in group for row in table.rows if row.variant == variant]
    found = [row.training_seconds for row in rows if row.training_seconds is not None]
    return sum(found) / len(found) if found else None


def _cache(value: float | None) -> str:
    return "none" if value is None else numbers.data_size(value)
