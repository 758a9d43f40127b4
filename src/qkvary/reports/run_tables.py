"""The tables behind the results: published figures, runs, problems, attention, learning rates."""

from collections.abc import Sequence

from qkvary.reports.attention_maps import AttentionMaps, best, chance, masses
from qkvary.reports.learning_curves import thinned
from qkvary.reports.tables import Cell, Column, Table, Tone, named, plain
from qkvary.studies.results.summary import (
    LearningCurve,
    PublishedCell,
    PublishedComparison,
    RunRow,
    Summary,
    metric_title,
)
from qkvary.text import names, numbers, units

_FLAGS: dict[str, tuple[str, Tone]] = {
    "yes": ("recomputes", ""),
    "no": ("does not recompute", "warn"),
    "rounding": ("differs by rounding", "quiet"),
    "other convention": ("other convention", "quiet"),
    "not checkable": ("not checkable", "quiet"),
}

_RUN = (
    Column(key="setting", title="setting", numeric=False),
    Column(key="variant", title="variant", numeric=False),
    Column(key="seed", title="seed"),
)


def published_table(comparison: PublishedComparison, key: str) -> Table:
    """Return a published table with our figures."""
    has_repeats = any(cell.repeats is not None for cell in comparison.cells)
    left_out = [names.clip(name, 80) for name in comparison.not_compared]
    notes = [
        f"Source: {comparison.source}. Unit: {comparison.unit}.",
        comparison.note,
        _repeat_note(comparison) if has_repeats else "",
        *comparison.notes,
    ]
    if left_out:
        notes.append(f"Published, without a counterpart here: {names.listed(left_out)}.")
    return Table(
        key=key,
        title=comparison.title,
        columns=(
            Column(key="variant", title="variant", numeric=False),
            Column(key="column", title="figure", numeric=False),
            Column(key="published", title="published"),
            Column(key="ours", title="ours"),
            Column(key="deviation", title="deviation", below="ours − published"),
            *((Column(key="repeat", title="a repeat", below="95 %"),) if has_repeats else ()),
            Column(key="recomputes", title="does it recompute?", numeric=False),
            Column(key="recomputed", title="recomputed"),
            Column(key="note", title="note", numeric=False),
        ),
        rows=tuple(_published_row(cell, has_repeats=has_repeats) for cell in comparison.cells),
        notes=tuple(note for note in notes if note),
    )


def _published_row(cell: PublishedCell, *, has_repeats: bool) -> tuple[Cell, ...]:
    flag, tone = _FLAGS[cell.recomputes]
    low, high = (
        like(end, cell.published, sign=False) for end in (cell.repeat_low, cell.repeat_high)
    )
    outside: Tone = "warn" if cell.repeats is False else ""
    repeat = None if cell.repeats is None else f"{low} to {high}"
    return (
        named(cell.variant),
        named(cell.column),
        plain(cell.published, with_deviation(cell.published, cell.published_std)),
        plain(cell.ours, with_deviation(cell.ours, cell.ours_std)),
        plain(cell.deviation, like(cell.deviation, cell.published, sign=True)),
        *([plain(repeat, tone=outside)] if has_repeats else []),
        plain(cell.recomputes, flag, tone),
        plain(cell.recomputed, like(cell.recomputed, cell.published, 1)),
        Cell(
            raw=cell.note,
            text=names.clip(cell.note, 300) or numbers.MISSING,
            tone="quiet",
        ),
    )


def _repeat_note(comparison: PublishedComparison) -> str:
    """Count the published figures that lie where a repeat of our runs would not."""
    known = [cell.repeats for cell in comparison.cells if cell.repeats is not None]
    return (
        f"Each published figure is a mean of {names.count(comparison.published_runs or 0, 'run')}. "
        "If these were like ours, it would lie in the interval of a repeat in 95 of 100 cases: "
        f"{known.count(False)} of {len(known)} lie outside."
    )


def with_deviation(value: float | None, deviation: float | None) -> str:
    """Write a value with its standard deviation in brackets, as the papers do."""
    if deviation is None or value is None:
        return like(value, value)
    return f"{like(value, value)} ({numbers.real(deviation, 2)})"


def like(value: float | None, model: float | None, more: int = 0, *, sign: bool = False) -> str:
    """Write a value with decimals that fit the size of another."""
    size = abs(model or 0.0)
    decimals = next((count for top, count in ((10, 3), (100, 2), (1000, 1)) if size < top), 0)
    return numbers.fixed(value, decimals + more, sign)


def run_table(runs: Sequence[RunRow], key: str, title: str, notes: Sequence[str] = ()) -> Table:
    """Return one row for each planned run."""
    metrics: dict[str, set[str]] = {}
    for run in runs:
        for name, _ in run.metrics:
            metrics.setdefault(name, set()).add(metric_title(name, is_tested=run.is_tested))
    rows = tuple(
        (
            named(run.setting),
            named(run.variant),
            plain(run.seed),
            plain(run.learning_rate, f"{run.learning_rate:g}"),
            plain(run.state, tone="" if run.state == "done" else "warn"),
            *(_metric(run, name) for name in metrics),
            plain(run.steps_to_solve, numbers.whole(run.steps_to_solve)),
            plain(run.training_seconds, units.duration(run.training_seconds)),
            plain(run.run_key, (run.run_key or numbers.MISSING)[:12]),
        )
        for run in runs
    )
    return Table(
        key=key,
        title=title,
        columns=(
            *_RUN,
            Column(key="learning_rate", title="learning rate"),
            Column(key="state", title="state", numeric=False),
            *(
                Column(key=name, title=names.clip(" or ".join(sorted(titles)), 40))
                for name, titles in metrics.items()
            ),
            Column(key="steps_to_solve", title="steps", below="until solved"),
            Column(key="training_seconds", title="training"),
            Column(key="run_key", title="run", numeric=False),
        ),
        rows=rows,
        notes=tuple(notes),
    )


def _metric(run: RunRow, name: str) -> Cell:
    value = dict(run.metrics).get(name)
    return plain(value, numbers.real(value, 4))


def problem_table(runs: Sequence[RunRow], key: str) -> Table:
    """Return the runs that failed, diverged, are damaged or are missing, with their messages."""
    return Table(
        key=key,
        title="Runs without a result",
        columns=(
            *_RUN,
            Column(key="state", title="state", numeric=False),
            Column(key="message", title="message", numeric=False),
            Column(key="run_key", title="run", numeric=False),
        ),
        rows=tuple(
            (
                named(run.setting),
                named(run.variant),
                plain(run.seed),
                plain(run.state, tone="warn"),
                Cell(
                    raw=run.message,
                    text=names.clip(run.message, 600) or numbers.MISSING,
                    name=True,
                ),
                plain(run.run_key, (run.run_key or numbers.MISSING)[:12]),
            )
            for run in runs
            if run.state != "done"
        ),
    )


def attention_table(examples: Sequence[AttentionMaps], key: str) -> Table:
    """Return the mass on the right cells by layer and head."""
    rows: list[tuple[Cell, ...]] = []
    for example in examples:
        most = best(example)
        rows.extend(
            (
                named(example.setting),
                named(example.variant),
                plain(example.seed),
                plain(mass.layer + 1),
                plain(mass.head + 1),
                plain(mass.mass, numbers.percent(mass.mass)),
                plain(chance(example), numbers.percent(chance(example)), "quiet"),
                plain("most" if mass == most else None, "most" if mass == most else ""),
            )
            for mass in masses(example)
        )
    return Table(
        key=key,
        title="Attention on the right cell",
        columns=(
            *_RUN,
            Column(key="layer", title="layer"),
            Column(key="head", title="head"),
            Column(key="mass", title="on the right cell"),
            Column(key="uniform", title="if uniform"),
            Column(key="most", title="", numeric=False),
        ),
        rows=tuple(rows),
    )


def curve_table(
    curves: Sequence[LearningCurve],
    key: str,
    title: str,
    places: int | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Return the points of learning curves; ``places`` limits the points per curve."""
    rows: list[tuple[Cell, ...]] = []
    for curve in curves:
        length = len(curve.steps)
        rows.extend(
            (
                named(curve.setting),
                named(curve.variant),
                plain(curve.quantity),
                plain(curve.steps[index], numbers.whole(curve.steps[index])),
                plain(curve.seconds[index], numbers.real(curve.seconds[index])),
                plain(curve.mean[index], numbers.real(curve.mean[index], 4)),
                plain(curve.low[index], numbers.real(curve.low[index], 4)),
                plain(curve.high[index], numbers.real(curve.high[index], 4)),
                plain(curve.runs[index]),
            )
            for index in thinned(length, places or length)
        )
    return Table(
        key=key,
        title=title,
        columns=(
            Column(key="setting", title="setting", numeric=False),
            Column(key="variant", title="variant", numeric=False),
            Column(key="quantity", title="quantity", numeric=False),
            Column(key="step", title="step"),
            Column(key="seconds", title="seconds"),
            Column(key="mean", title="mean"),
            Column(key="low", title="smallest"),
            Column(key="high", title="largest"),
            Column(key="runs", title="runs"),
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def learning_rate_table(summary: Summary, key: str) -> Table:
    """Return the learning rates, with those that were chosen."""
    return Table(
        key=key,
        title="Learning rates",
        columns=(
            Column(key="setting", title="setting", numeric=False),
            Column(key="variant", title="variant", numeric=False),
            Column(key="learning_rate", title="learning rate"),
            Column(key="runs_done", title="runs", below="done/planned"),
            Column(key="validation_mean", title="validation", below="mean"),
            Column(key="chosen", title="chosen", numeric=False),
        ),
        rows=tuple(
            (
                named(row.setting),
                named(row.variant),
                plain(row.learning_rate, f"{row.learning_rate:g}"),
                plain(row.counts.done, f"{row.counts.done}/{row.counts.planned}"),
                plain(row.validation_mean, numbers.real(row.validation_mean, 4)),
                plain(
                    row.chosen,
                    ("chosen, at the edge" if row.at_the_edge else "chosen") if row.chosen else "",
                    "warn" if row.chosen and row.at_the_edge else "",
                ),
            )
            for row in summary.learning_rates
        ),
    )
