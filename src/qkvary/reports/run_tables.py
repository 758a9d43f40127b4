"""Makes the supporting tables: published numbers, runs, problems, attention, learning rates."""

from collections.abc import Sequence
from functools import partial

from qkvary.reports.tables import (
    Cell,
    Table,
    Tone,
    clipped,
    dataset,
    label,
    number,
    pick,
    plain,
    tabulate,
    word,
)
from qkvary.studies.results.summary import (
    LearningCurve,
    LearningRateRow,
    PublishedCell,
    PublishedComparison,
    RunRow,
    Summary,
)
from qkvary.text import names, numbers

_FLAGS: dict[str, tuple[str, Tone]] = {
    "yes": ("recomputes", ""),
    "no": ("does not recompute", "warn"),
    "rounding": ("differs by rounding", "quiet"),
    "other convention": ("other convention", "quiet"),
    "not checkable": ("not checkable", "quiet"),
}

PRECISE = partial(numbers.real, digits=4)
"""Formats a number with four digits."""


def published_table(comparison: PublishedComparison, key: str) -> Table:
    """Return a table that compares published numbers with the numbers of our runs."""
    repeats = comparison.repeats
    outside = (
        f"Each published number is a mean of {names.count(comparison.published_runs or 0, 'run')}. "
        "If the published runs are like ours, the interval in the column “a repeat” contains the "
        f"published number in 95 of 100 cases. Of {len(repeats)} published numbers, "
        f"{0.05 * len(repeats):.1f} are then expected outside by chance; {repeats.count(False)} "
        "are outside, marked “not”."
    )
    left_out = names.listed([names.clip(name, 80) for name in comparison.not_compared])
    notes = [
        f"Source: {comparison.source}. Unit: {comparison.unit}.",
        comparison.note,
        outside if repeats else "",
        *comparison.notes,
        f"Published numbers without a counterpart in this study: {left_out}." if left_out else "",
    ]

    def deviation(cell: PublishedCell) -> Cell:
        return plain(cell.deviation, _like(cell.deviation, cell.published, sign=True))

    def recomputed(cell: PublishedCell) -> Cell:
        return plain(cell.recomputed, _like(cell.recomputed, cell.published, 1))

    return tabulate(
        key,
        comparison.title,
        comparison.cells,
        label("variant"),
        label("column", "figure"),
        number("published=", "published", lambda c: _measured(c.published, c.published_std)),
        number("ours=", "ours", lambda cell: _measured(cell.ours, cell.ours_std)),
        number("deviation=", "deviation", deviation, below="ours − published"),
        *([number("repeat=", "a repeat", _repeat, below="95 %")] if repeats else []),
        word("recomputes", "does it recompute?", lambda found: plain(found, *_FLAGS[found])),
        number("recomputed=", "recomputed", recomputed),
        word("note", write=lambda note: clipped(note, 300, "quiet")),
        notes=filter(None, notes),
    )


def _measured(value: float | None, deviation: float | None) -> Cell:
    """Return a value with its standard deviation in brackets, as the papers print them."""
    after = "" if deviation is None or value is None else f" ({numbers.real(deviation, 2)})"
    return plain(value, _like(value, value) + after)


def _repeat(cell: PublishedCell) -> Cell:
    low, high = (_like(end, cell.published) for end in (cell.repeat_low, cell.repeat_high))
    if cell.repeats is None:
        return plain(None)
    return plain(f"{low} to {high}") if cell.repeats else plain(f"not {low} to {high}", tone="warn")


def _like(value: float | None, model: float | None, more: int = 0, *, sign: bool = False) -> str:
    """Write a value with decimals that depend on the size of ``model``.

    ``more`` is a number of additional decimals.
    """
    size = abs(model or 0.0)
    decimals = next((count for top, count in ((10, 3), (100, 2), (1000, 1)) if size < top), 0)
    return numbers.fixed(value, decimals + more, sign)


def problem_table(runs: Sequence[RunRow]) -> Table:
    """Return the runs that failed, diverged, are damaged or are missing, with their messages."""
    return tabulate(
        "problems",
        "Runs without a result",
        [run for run in runs if run.state != "done"],
        label("setting"),
        label("variant"),
        number("seed"),
        word("state", write=lambda state: plain(state, tone="warn")),
        word("message", write=lambda message: clipped(message, 600, name=True)),
        word("run_key", "run", lambda key: plain(key, (key or numbers.MISSING)[:12])),
    )


def curve_table(curves: Sequence[LearningCurve], key: str) -> Table:
    """Return all points of learning curves, for the CSV file."""
    columns = ("seconds", "mean", "low", "high", "runs")
    return dataset(
        key,
        (
            {
                **pick(curve, "setting variant quantity"),
                "step": step,
                **{name: getattr(curve, name)[index] for name in columns},
            }
            for curve in curves
            for index, step in enumerate(curve.steps)
        ),
    )


def learning_rate_table(summary: Summary, key: str) -> Table:
    """Return the learning rates that were tried, and the chosen ones."""

    def chosen(row: LearningRateRow) -> Cell:
        if row.chosen and row.at_the_edge:
            return plain(row.chosen, "chosen, at an end of the range", "warn")
        return plain(row.chosen, "chosen" if row.chosen else "")

    return tabulate(
        key,
        "Learning rates",
        summary.learning_rates,
        label("setting"),
        label("variant"),
        number("learning_rate", "learning rate", "{:g}".format),
        number(
            "runs_done=counts",
            "runs",
            lambda counts: plain(counts.done, f"{counts.done}/{counts.planned}"),
            below="done/planned",
        ),
        number("validation_mean", "validation", PRECISE, below="mean"),
        word("chosen=", "chosen", chosen),
    )
