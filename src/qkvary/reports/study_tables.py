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
    FrontierPoint,
    ResultTable,
    Solving,
    Summary,
    VariantRow,
)
from qkvary.text import names, numbers

_TONES: dict[str, Tone] = {"better": "better", "worse": "worse"}
ARROWS = {"better": "▲", "worse": "▼"}
"""Symbols for supported differences; the word follows if there is room."""


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
    """Return the counts as a cell."""
    return Cell(raw=counts.done, text=count_words(counts), tone="" if counts.complete else "warn")


_RUNS_DONE = number("runs_done=counts", "runs", count_cell, below="done/planned")


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


def matrix(summary: Summary) -> Table:
    """Return the overview: variants by tasks, each with mean, spread, difference and counts."""
    tables = main_tables(summary)
    note = (
        "Mean ± standard deviation over seeds; below it, the paired difference from "
        f"{summary.baseline} with its {numbers.percent(summary.method.confidence, 0)} interval. "
        f"{ARROWS['better']} means that the data show the variant to be better, {ARROWS['worse']} "
        "that they show it to be worse; without a mark, the data do not distinguish the variant "
        f"from {summary.baseline}."
    )
    return tabulate(
        "overview",
        "Variants by task",
        summary.variants,
        label("variant="),
        *(_metric_column(table, partial(_matrix_cell, table)) for table in tables),
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


def _matrix_cell(table: ResultTable, variant: str) -> Cell:
    row = next((row for row in table.rows if row.variant == variant), None)
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
    if not row.counts.complete:
        below.append(count_words(row.counts))
    return Cell(raw=row.mean, text=text, below=tuple(below), tone=tone)


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
    return count(run for run in summary.runs if run.variant == variant)


def result_table(table: ResultTable, summary: Summary, key: str) -> Table:
    """Return the full results of one table: all statistics of every variant."""
    decimals = decimals_for(table)
    way = "higher" if table.higher_is_better else "lower"
    pairing = "differences are paired by seed and setting"
    note = f"{names.count(len(table.settings), 'setting')}; {pairing}, baseline {summary.baseline}."
    fixed = partial(numbers.fixed, decimals=decimals)
    signed = partial(fixed, sign=True)

    def alone(gap: Difference | None) -> Cell:
        if gap is None or gap.low_single is None or gap.high_single is None:
            return plain(None)
        return plain(numbers.interval(gap.low_single, gap.high_single, decimals, sign=True))

    def probability(value: float | None) -> str:
        return "< 0.001" if value is not None and value < 0.001 else numbers.fixed(value, 3)

    def verdict(row: VariantRow) -> Cell:
        if row.difference is not None:
            return _verdict(row.difference.verdict)
        is_baseline = row.variant == summary.baseline
        return plain("baseline", tone="quiet") if is_baseline else plain(None)

    return tabulate(
        key,
        f"{table.name}: {metric_name(table)} ({way} is better)",
        table.rows,
        label("variant"),
        _RUNS_DONE,
        number("mean", write=fixed),
        number("std_seeds", "SD", fixed, below="over seeds"),
        number("std_settings", "SD", fixed, below="over settings"),
        number("difference=difference.mean", write=signed, below="from the baseline"),
        number("interval=difference", write=partial(_interval, decimals), below="all comparisons"),
        number("interval_single=difference", "interval", alone, below="this one alone"),
        number("p_adjusted=difference.p_adjusted", "p", probability, below="adjusted"),
        number("detectable=difference.detectable", write=fixed, below="difference"),
        word("verdict=", "the data say", verdict),
        notes=(note, *table.notes),
    )


def _interval(decimals: int, gap: Difference | None) -> Cell:
    return plain(None if gap is None else interval(gap, decimals))


def frontier_table(frontier: Frontier, key: str, notes: Sequence[str] = ()) -> Table:
    """Return the points of a chart of quality against cost, with the notes of its settings."""
    left_out = names.listed([names.clip(name, 60) for name in frontier.left_out])
    reason = "no run has finished or this cost is unknown"
    missing = [f"Left out, because {reason}: {left_out}."] if left_out else []
    writers: dict[str, Callable[[float], str]] = {
        "cache_bytes_per_token": numbers.data_size,
        "training_seconds": numbers.duration,
    }
    write = writers.get(frontier.axis, numbers.whole)

    def standing(point: FrontierPoint) -> Cell:
        tone: Tone = "quiet" if point.standing == "dominated" else ""
        return plain(point.standing, names.clip(point.sentence, 300), tone)

    return tabulate(
        key,
        f"{frontier.table}: {metric_name(frontier)} against {frontier.axis_title}",
        frontier.points,
        label("variant"),
        number(f"{frontier.axis}=cost", frontier.axis_title, write),
        number("quality", metric_name(frontier), partial(numbers.fixed, decimals=4)),
        word("standing=", "is it on the frontier?", standing),
        notes=(*missing, *notes),
    )


def solving_table(table: ResultTable, key: str) -> Table:
    """Return a table of the runs that solved the task: their number, and the steps they took."""
    rows = [row for row in table.rows if row.solving]
    thresholds = [row.solving.threshold for row in rows if row.solving]
    reaches = "A task is solved when its validation metric reaches"
    threshold = f" {reaches} {thresholds[0]:g}." if thresholds else ""
    unsolved = (
        "A run that never solved the task enters the mean as if it had solved the task at its last "
        "step, and enters the median as slower than every run that solved the task."
    )
    difference = partial(numbers.fixed, decimals=0, sign=True)
    mean = "restricted_mean_steps=solving.restricted_mean_steps"
    gap = "difference_steps=solving.difference.mean"
    return tabulate(
        key,
        f"{table.name}: steps until solved",
        rows,
        label("variant"),
        _RUNS_DONE,
        number("solved=solving", "solved", lambda s: plain(s.solved, f"{s.solved} of {s.runs}")),
        number("proportion=solving", "share", _share, below="95 % interval"),
        number("median_steps=solving", "median", _median_steps, below="steps"),
        number(mean, "mean", numbers.whole, below="steps"),
        number(gap, "difference", difference, below="of the means"),
        number("interval=solving.difference", write=partial(_interval, 0), below="all comparisons"),
        word("verdict=solving.difference.verdict", "the data say", _verdict),
        notes=(f"Fewer steps are better.{threshold} {unsolved}",),
    )


def _verdict(verdict: str) -> Cell:
    return plain(verdict, tone=_TONES.get(verdict, "quiet"))


def _share(solving: Solving) -> Cell:
    if solving.proportion_low is None or solving.proportion_high is None:
        return plain(None)
    ends = (solving.proportion_low, solving.proportion_high)
    return plain(" to ".join(numbers.percent(end, 0) for end in ends))


def _median_steps(solving: Solving) -> Cell:
    steps = solving.median_steps
    return plain(steps, f"> {solving.horizon:,}" if steps is None else numbers.whole(steps))


def cost_table(tables: Sequence[ResultTable]) -> Table:
    """Return the costs of the networks; tasks with equal networks share their rows."""
    groups: dict[object, list[ResultTable]] = {}
    for table in [one for one in tables if one.kind != "average"] or tables:
        signature = tuple((row.variant, row.costs) for row in table.rows)
        groups.setdefault(signature, []).append(table)
    measured = any(row.utilization is not None for table in tables for row in table.rows)
    rows = [
        {
            "task": ", ".join(table.name for table in group),
            "parts": dict(row.costs.parameters),
            **pick(
                row,
                "variant parameters_total=costs.parameters_total macs=costs.macs_per_token "
                "sequence=costs.macs_per_sequence cache=costs.cache_bytes_per_token",
            ),
            "seconds": _group_mean(group, row.variant, "training_seconds"),
            "utilization": _group_mean(group, row.variant, "utilization"),
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
    utilization = number("utilization", write=partial(numbers.percent, decimals=0), below="mean")
    note = (
        "Utilization is the number of FLOPs per second in training, not counting masked pairs and "
        "recomputation, divided by the FLOPs per second that one large matmul reaches on the same "
        "device at the end of the run."
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
        *([utilization] if measured else []),
        notes=(
            (
                "MACs are multiply-accumulate operations of one forward pass; the number of FLOPs "
                "is twice the number of MACs."
            ),
            *([note] if measured else []),
        ),
    )


def _group_mean(group: Sequence[ResultTable], variant: str, name: str) -> float | None:
    """Return the mean of a variant's value over tables, or None if no table has it."""
    rows = [row for table in group for row in table.rows if row.variant == variant]
    found = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(found) / len(found) if found else None


def _cache(value: float | None) -> str:
    return "none" if value is None else numbers.data_size(value)
