"""Figures of kept runs at several times of their training, for ``qkvary claims``.

    python studies/over-training/measure.py

It reads the kept runs (``studies/*/runs.jsonl.xz``) and trains nothing. Seeds are pairs; intervals
are Student's at 95 %, for all rows of a table at once.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from qkvary.reports.kept_tables import read_rows
from qkvary.reports.markdown import table_markdown
from qkvary.reports.tables import Cell, Column, Table, plain, table_csv
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.studies.results.statistics import (
    corrected_confidence,
    detectable_difference,
    paired_t,
    rank_correlation,
)
from qkvary.studies.running.run_archive import read_runs
from qkvary.text import numbers

STUDIES = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent
QUARTERS = (0.25, 0.5, 0.75, 1.0)
LAST_LOSSES = 6
"""Logged training losses whose mean is the training loss at the end."""
COLUMNS = (
    *("table", "variant", "reference", "quantity", "value", "low", "high", "detectable"),
    *("runs", "parameters_least", "parameters_most"),
)
WORDS = 4
"""The columns that are words."""
PAGE = """# Is what holds at the end of a training so throughout?

From the kept runs of other studies; nothing is trained here. Figures are means over seeds of paired
differences, with Student's intervals at 95 % for all rows of the same comparison at once.
`detectable` is the smallest difference that would have been seen.

- *validation loss*, *validation accuracy*: the variant less its reference, at the evaluation that
  is nearest to each quarter of the training.
- *change of the difference*: that difference at the end, less that halfway.
- *gap*: test loss less training loss (the mean of the last six logged batches) of the variant, less
  the same of its reference. Runs of a seed read the same batches.
- *rank correlation*: that of all variants' validation losses at a step with those at the end.

`python studies/over-training/measure.py` makes it again.

## Before you believe it

- The learning rate falls over each training, so that a network halfway is no network that was
  trained for half as long.
- The networks are small; nothing was measured at the sizes of the papers.
- The gaps are those after 245,760 bytes, the beginning of a training. They say nothing about
  networks that learn their text by heart.

"""


class Run(NamedTuple):
    """A kept run."""

    setting: str
    variant: str
    seed: int
    parameters: int
    validation: Mapping[int, Mapping[str, float]]
    """The figures of each evaluation, by step."""
    train: Sequence[float]
    """The logged training losses."""
    test_loss: float | None


class Comparison(NamedTuple):
    """A variant and its reference in a setting of a study."""

    study: str
    setting: str
    variant: str
    reference: str
    metric: str = "loss"


CLOSE = (
    Comparison("projections-quick", "characters", "Q-K=V", "QKV"),
    Comparison("projections-quick", "characters", "I-K-V", "QKV"),
    Comparison("why-initialization", "deviation 0.06", "Q-K=V@rotary", "QKV@rotary"),
    Comparison("why-query-map", "novels", "I-K-V@rotary", "QKV@rotary"),
)
LONGER = (
    *(
        Comparison("cifar10-quick", "cifar10-15k", one, "QKV", "accuracy")
        for one in ("Q=K-V", "Q-K=V", "Q=K=V")
    ),
    *(
        Comparison("projections-quick", "characters", one, "QKV")
        for one in ("Q=K-V", "Q-K=V", "Q=K=V")
    ),
)
RANKED = (("projections-quick", "characters"), ("why-query-map", "novels"))
DECAYS = "why-weight-decay"


@functools.cache
def load_runs(study: str) -> tuple[Run, ...]:
    """Return the finished runs of a study, in the order of its table."""
    folder = STUDIES / study
    path = folder / "runs.jsonl.xz"
    packed = {one.record.run_key: one for one in read_runs(path.read_bytes(), str(path))}
    found: list[Run] = []
    for row in read_rows(folder / "tables" / "runs.csv", {"setting", "run_key", "state"}):
        if row["state"] != "done":
            continue
        journal = packed[row["run_key"]].journal or b""
        events = [json.loads(line) for line in journal.splitlines()]
        found.append(
            Run(
                setting=row["setting"],
                variant=row["variant"],
                seed=int(row["seed"]),
                parameters=count_parameters(folder, row["variant"]),
                validation={one["step"]: one for one in events if one["event"] == "validation"},
                train=[one["loss"] for one in events if one["event"] == "train"],
                test_loss=next((one.get("loss") for one in events if one["event"] == "test"), None),
            )
        )
    return tuple(found)


def count_parameters(folder: Path, variant: str) -> int:
    """Return the parameters of a variant of a study."""
    rows = read_rows(folder / "tables" / "costs.csv", {"variant", "parameters_total"})
    return next(int(float(one["parameters_total"])) for one in rows if one["variant"] == variant)


def pair_runs(one: Comparison) -> list[tuple[Run, Run]]:
    """Return the runs of a variant and of its reference, by seed."""
    runs = [run for run in load_runs(one.study) if run.setting == one.setting]
    references = {run.seed: run for run in runs if run.variant == one.reference}
    own = [run for run in runs if run.variant == one.variant]
    return [(run, references[run.seed]) for run in own if run.seed in references]


def quarter_steps(run: Run) -> list[int]:
    """Return the evaluated steps that are nearest to the quarters of a training."""
    last = max(run.validation)
    return [min(run.validation, key=lambda step: abs(step - part * last)) for part in QUARTERS]


Raw = str | float | None


def estimate_row(
    names: Sequence[str], values: Sequence[float], comparisons: int, runs: Sequence[Run]
) -> tuple[Raw, ...]:
    """Return a figure with its interval, corrected for the comparisons made at once."""
    confidence = corrected_confidence(0.95, comparisons)
    found = paired_t(values, confidence=confidence)
    seen = None
    if found.std is not None:
        seen = detectable_difference(found.std, found.units, confidence=confidence)
    sizes = [run.parameters for run in runs]
    figures = (found.mean, found.low, found.high, seen, found.units, min(sizes), max(sizes))
    return (*names, *figures)


def close_rows(one: Comparison) -> Iterator[tuple[Raw, ...]]:
    """Yield the difference at each quarter of a training."""
    pairs = pair_runs(one)
    for step in quarter_steps(pairs[0][0]):
        differences = [
            own.validation[step][one.metric] - other.validation[step][one.metric]
            for own, other in pairs
        ]
        place = f"{one.study}, {one.setting}, after {step} steps"
        names = (place, one.variant, one.reference, f"validation {one.metric}")
        yield estimate_row(names, differences, len(QUARTERS), list(itertools.chain(*pairs)))


def longer_row(one: Comparison, comparisons: int) -> tuple[Raw, ...]:
    """Return the change of a difference from halfway to the end."""
    pairs = pair_runs(one)
    _, half, _, last = quarter_steps(pairs[0][0])

    def difference(pair: tuple[Run, Run], step: int) -> float:
        own, other = (run.validation[step][one.metric] for run in pair)
        return own - other

    changes = [difference(pair, last) - difference(pair, half) for pair in pairs]
    place = f"{one.study}, {one.setting}, after {last} steps against {half}"
    names = (place, one.variant, one.reference, "change of the difference")
    return estimate_row(names, changes, comparisons, list(itertools.chain(*pairs)))


def gap_rows() -> Iterator[tuple[Raw, ...]]:
    """Yield the difference of the gaps at each weight decay."""
    settings = list(dict.fromkeys(run.setting for run in load_runs(DECAYS)))
    for setting in settings:
        pairs = pair_runs(Comparison(DECAYS, setting, "I-K-V@rotary", "QKV@rotary"))
        gaps = [gap(own) - gap(other) for own, other in pairs]
        names = (f"{DECAYS}, {setting}", "I-K-V@rotary", "QKV@rotary", "gap")
        yield estimate_row(names, gaps, len(settings), list(itertools.chain(*pairs)))


def gap(run: Run) -> float:
    """Return the test loss less the training loss at the end."""
    if run.test_loss is None:
        raise ValueError(f"expected a test loss of {run.variant}, got none")
    return run.test_loss - fmean(run.train[-LAST_LOSSES:])


def rank_rows(study: str, setting: str) -> Iterator[tuple[Raw, ...]]:
    """Yield how the ranks of variants at a quarter compare with those at the end."""
    runs = [run for run in load_runs(study) if run.setting == setting]
    *steps, last = quarter_steps(runs[0])
    for step in steps:
        found = []
        for seed in sorted({run.seed for run in runs}):
            own = [run.validation for run in runs if run.seed == seed]
            then, ended = ([one[at]["loss"] for one in own] for at in (step, last))
            found.append(rank_correlation(then, ended))
        place = f"{study}, {setting}, after {step} steps"
        values = [one for one in found if one is not None]
        names = (place, "all variants", "", "rank correlation")
        *row, low, high, seen, units, least, most = estimate_row(names, values, len(steps), runs)
        # No correlation lies outside -1 to 1.
        ends = (None if one is None else min(1.0, max(-1.0, float(one))) for one in (low, high))
        yield (*row, *ends, seen, units, least, most)


def figures_table() -> Table:
    """Return all figures."""
    rows = [
        *itertools.chain.from_iterable(map(close_rows, CLOSE)),
        *(longer_row(one, sum(one.study == other.study for other in LONGER)) for one in LONGER),
        *gap_rows(),
        *itertools.chain.from_iterable(rank_rows(*one) for one in RANKED),
    ]
    columns = (
        Column(key=key, title=key.replace("_", " "), numeric=number >= WORDS)
        for number, key in enumerate(COLUMNS)
    )
    cells = tuple(tuple(map(write_cell, COLUMNS, row)) for row in rows)
    return Table(key="figures", title="Figures", columns=tuple(columns), rows=cells)


def write_cell(column: str, raw: Raw) -> Cell:
    """Return a cell, with four decimals for figures."""
    if column in COLUMNS[WORDS : WORDS + 4] and isinstance(raw, float):
        return plain(raw, numbers.fixed(raw, 4))
    return plain(raw)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of README and tables")
    folder = parser.parse_args(arguments).to
    table = figures_table()
    files = {"README.md": PAGE + table_markdown(table), "tables/figures.csv": table_csv(table)}
    for name, text in files.items():
        make_directory((folder / name).parent)
        atomic_write_file(folder / name, text.encode())


if __name__ == "__main__":
    main()
