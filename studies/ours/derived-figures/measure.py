"""Figures for ``qkvary claims`` that follow from the curves or several tables of kept runs.

    python studies/ours/derived-figures/measure.py

It reads the kept runs (``studies/*/*runs.jsonl.xz``) and trains nothing. Pairs are seeds, or for
some studies settings; intervals are Student's at 95 %, for all rows of a comparison at once.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from qkvary.papers.kept_tables import read_rows
from qkvary.papers.script_figures import figure_row, write_figures
from qkvary.reports.tables import Raw
from qkvary.studies.results.statistics import corrected_confidence, paired_t, rank_correlation
from qkvary.studies.running.run_archive import FinishedRun, read_runs

STUDIES = Path(__file__).resolve().parents[1]
FOLDER = Path(__file__).parent
QUARTERS = (0.25, 0.5, 0.75, 1.0)
LAST_LOSSES = 6
"""Logged training losses whose mean is the training loss at the end."""
PAGE = """# Figures that follow from the curves or several tables of kept runs

Nothing is trained here. Figures are means of paired differences, with Student's intervals at
95 % for all rows of the same comparison at once. Pairs are seeds, except in the rows of
`synthetic-published` and `chars-published`. `detectable` is the smallest difference that would
have been seen.

- *validation loss*, *validation accuracy*: the variant less its reference, at the evaluation that
  is nearest to each quarter of the training.
- *change of the difference*: the difference of test losses in one setting, less that in another; or
  the difference of validation losses or accuracies at the end of a training, less that halfway.
- *gap*: test loss less training loss (the mean of the last six logged batches) of the variant, less
  the same of its reference. Runs of a seed read the same batches.
- *test accuracy*, *test loss*, *validation loss halfway*: the variant less its reference; the last
  one at the evaluation that is nearest to half of the training. Pairs are networks in one setting,
  each the mean of its seeds. `synthetic-published` has eight: four networks of width 64, with 64
  digits and with 128. *mean test accuracy* is the mean over these eight.
- *rank correlation*: that of all variants' validation losses at a step with those at the end.

`python studies/ours/derived-figures/measure.py` makes it again.

## Before you believe it

- The learning rate falls over each training, so that a network halfway is no network that was
  trained for half as long.
- The networks are small. Only those of `synthetic-published` and `chars-published` have published
  sizes.
- Intervals over settings assume that the settings are independent. In `synthetic-published`,
  networks that differ only in their heads or in the length start from the same weights, so these
  intervals are too narrow.
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
    test_loss: float


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
SETTINGS = (
    ("why-capacity", "feed-forward x16", "feed-forward x4"),
    ("why-capacity", "feed-forward x1", "feed-forward x4"),
)
"""Studies with two settings between which the cost of an identity query may change."""
PUBLISHED = STUDIES.parent / "key_value"
SYNTHETIC = (
    PUBLISHED / "synthetic-published-part" / "runs.jsonl.xz",
    PUBLISHED / "synthetic-published-part" / "d64-n64-runs.jsonl.xz",
    PUBLISHED / "synthetic-published-longer" / "runs.jsonl.xz",
)
"""All runs of the five tasks at width 64, with 64 digits (on a CPU) and with 128 (on a GPU)."""
TASKS = ("reverse", "sort", "sub", "swap", "copy")
UNSOLVED = ("reverse", "sort", "swap")
CHARACTERS = PUBLISHED / "chars-published" / "runs.jsonl.xz"


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
                test_loss=next(one["loss"] for one in events if one["event"] == "test"),
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


def estimate_row(
    values: Sequence[float], comparisons: int, runs: Sequence[Run], **names: Any
) -> dict[str, Raw]:
    """Return a figure with its interval, corrected for the comparisons made at once."""
    estimate = paired_t(values, confidence=corrected_confidence(0.95, comparisons))
    return figure_row(estimate, parameters={run.parameters for run in runs}, **names)


def compare_row(
    values: Sequence[float], comparisons: int, pairs: Sequence[tuple[Run, Run]], **names: Any
) -> dict[str, Raw]:
    """Return a figure of pairs of runs."""
    own, other = pairs[0]
    runs = list(itertools.chain(*pairs))
    names |= {"variant": own.variant, "reference": other.variant}
    return estimate_row(values, comparisons, runs, **names)


def close_rows(one: Comparison) -> Iterator[dict[str, Raw]]:
    """Yield the difference at each quarter of a training."""
    pairs = pair_runs(one)
    for step in quarter_steps(pairs[0][0]):
        yield compare_row(
            [difference(pair, step, one.metric) for pair in pairs],
            len(QUARTERS),
            pairs,
            table=f"{one.study}, {one.setting}, after {step} steps",
            quantity=f"validation {one.metric}",
        )


def longer_row(one: Comparison, comparisons: int) -> dict[str, Raw]:
    """Return the change of a difference from halfway to the end."""
    pairs = pair_runs(one)
    _, half, _, last = quarter_steps(pairs[0][0])
    return compare_row(
        [difference(pair, last, one.metric) - difference(pair, half, one.metric) for pair in pairs],
        comparisons,
        pairs,
        table=f"{one.study}, {one.setting}, after {last} steps against {half}",
        quantity="change of the difference",
    )


def difference(pair: tuple[Run, Run], step: int, metric: str) -> float:
    """Return a validation figure of a run less that of its reference."""
    own, other = (run.validation[step][metric] for run in pair)
    return own - other


def setting_row(study: str, setting: str, reference: str, comparisons: int) -> dict[str, Raw]:
    """Return by how much more an identity query costs in one setting than in another."""
    first, second = (
        pair_runs(Comparison(study, one, "I-K-V@rotary", "QKV@rotary"))
        for one in (setting, reference)
    )
    costs = [[own.test_loss - other.test_loss for own, other in some] for some in (first, second)]
    return compare_row(
        [one - other for one, other in zip(*costs, strict=True)],
        comparisons,
        [*first, *second],
        table=f"{study}, {setting} against {reference}",
        quantity="change of the difference",
    )


def gap_rows() -> Iterator[dict[str, Raw]]:
    """Yield the difference of the gaps at each weight decay."""
    settings = list(dict.fromkeys(run.setting for run in load_runs(DECAYS)))
    for setting in settings:
        pairs = pair_runs(Comparison(DECAYS, setting, "I-K-V@rotary", "QKV@rotary"))
        gaps = [gap(own) - gap(other) for own, other in pairs]
        table = f"{DECAYS}, {setting}"
        yield compare_row(gaps, len(settings), pairs, table=table, quantity="gap")


def gap(run: Run) -> float:
    """Return the test loss less the training loss at the end."""
    return run.test_loss - fmean(run.train[-LAST_LOSSES:])


def rank_rows(study: str, setting: str) -> Iterator[dict[str, Raw]]:
    """Yield how the ranks of variants at a quarter compare with those at the end."""
    runs = [run for run in load_runs(study) if run.setting == setting]
    *steps, last = quarter_steps(runs[0])
    for step in steps:
        found = []
        for seed in sorted({run.seed for run in runs}):
            own = [run.validation for run in runs if run.seed == seed]
            then, ended = ([one[at]["loss"] for one in own] for at in (step, last))
            found.append(rank_correlation(then, ended))
        row = estimate_row(
            [one for one in found if one is not None],
            len(steps),
            runs,
            table=f"{study}, {setting}, after {step} steps",
            variant="all variants",
            quantity="rank correlation",
        )
        # No correlation lies outside -1 to 1.
        ends = {
            end: min(1.0, max(-1.0, value))
            for end in ("low", "high")
            if isinstance(value := row[end], float)
        }
        yield {**row, **ends}


def test_score(run: FinishedRun) -> float:
    """Return the test score of a run."""
    return run.record.metrics[run.record.metric]


def halfway_loss(run: FinishedRun) -> float:
    """Return the validation loss at the evaluation that is nearest to half of a training."""
    events = [json.loads(line) for line in (run.journal or b"").splitlines()]
    losses = {one["step"]: one["loss"] for one in events if one["event"] == "validation"}
    half = max(losses) / 2
    return losses[min(losses, key=lambda step: abs(step - half))]


class Scores(NamedTuple):
    """Scores of the runs of a study, by variant and by setting of its network."""

    by_unit: Mapping[str, Mapping[tuple[int, ...], Sequence[float]]]
    parameters: Mapping[str, set[int]]
    """Parameter counts of the networks of each variant."""

    def mean_rows(self, variants: Sequence[str], **names: str) -> Iterator[dict[str, Raw]]:
        """Yield the mean score of each variant. A unit is a network in one setting."""
        for variant in variants:
            yield self._row(
                variant, [fmean(one) for one in self.by_unit[variant].values()], **names
            )

    def difference_rows(
        self, pairs: Sequence[tuple[str, str]], **names: str
    ) -> Iterator[dict[str, Raw]]:
        """Yield the differences of the mean scores of variants, paired by unit."""
        for variant, reference in pairs:
            own, other = self.by_unit[variant], self.by_unit[reference]
            values = [fmean(own[unit]) - fmean(other[unit]) for unit in own]
            yield self._row(variant, values, reference, comparisons=len(pairs), **names)

    def _row(
        self,
        variant: str,
        values: Sequence[float],
        reference: str = "",
        *,
        comparisons: int = 1,
        **names: str,
    ) -> dict[str, Raw]:
        own, other = (self.parameters.get(one, set()) for one in (variant, reference))
        return figure_row(
            paired_t(values, confidence=corrected_confidence(0.95, comparisons)),
            runs=sum(map(len, self.by_unit[variant].values())),
            variant=variant,
            reference=reference,
            parameters=own | other,
            **names,
        )


def collect_scores(
    runs: Iterable[FinishedRun], score: Callable[[FinishedRun], float] = test_score
) -> Scores:
    """Return the scores of runs, of which each variant has equally many in each setting."""
    found: dict[str, dict[tuple[int, ...], list[float]]] = {}
    parameters: dict[str, set[int]] = {}
    for run in runs:
        one, network = run.record, run.record.config["network"]
        attention = network["attention"]
        unit = (network["max_tokens"], network["num_layers"])
        unit += (attention["d_model"], attention["num_heads"])
        found.setdefault(one.variant, {}).setdefault(unit, []).append(score(run))
        parameters.setdefault(one.variant, set()).add(one.costs["parameters"]["total"])
    if len({len(values) for units in found.values() for values in units.values()}) > 1:
        sys.exit("expected equally many runs of each variant in each setting")
    return Scores(found, parameters)


def synthetic_rows() -> Iterator[dict[str, Raw]]:
    """Yield the figures of the synthetic tasks."""
    runs = [run for path in SYNTHETIC for run in read_runs(path.read_bytes(), str(path))]
    variants = list(dict.fromkeys(run.record.variant for run in runs))
    to_qkv = [(one, "QKV") for one in variants if one != "QKV"]
    of_plus = [(f"({one})+", one) for one in ("Q=K-V", "Q=K=V")]
    # Every run of sub and copy has an accuracy of 1.
    tables = {**{task: (task,) for task in UNSOLVED}, f"average of {', '.join(TASKS)}": TASKS}
    for name, tasks in tables.items():
        table = f"synthetic-published, width 64, {name}"
        own = [run for run in runs if run.record.task in tasks]
        scores = collect_scores(own)
        yield from scores.mean_rows(variants, table=table, quantity="mean test accuracy")
        for pairs in (to_qkv, of_plus):
            yield from scores.difference_rows(pairs, table=table, quantity="test accuracy")
        if name == "sort":
            halfway = collect_scores(own, halfway_loss)
            names = {"table": table, "quantity": "validation loss halfway"}
            yield from halfway.difference_rows(to_qkv, **names)


def figure_rows() -> Iterator[dict[str, Raw]]:
    """Yield all figures."""
    for one in CLOSE:
        yield from close_rows(one)
    for one in LONGER:
        yield longer_row(one, sum(one.study == other.study for other in LONGER))
    for study, setting, reference in SETTINGS:
        comparisons = sum(study == other for other, *_ in SETTINGS)
        yield setting_row(study, setting, reference, comparisons)
    yield from gap_rows()
    for study, setting in RANKED:
        yield from rank_rows(study, setting)
    yield from synthetic_rows()
    characters = collect_scores(read_runs(CHARACTERS.read_bytes(), str(CHARACTERS)))
    names = {"table": "chars-published, characters", "quantity": "test loss"}
    yield from characters.difference_rows([("(Q=K-V)+", "Q=K-V")], **names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of README and tables")
    folder = parser.parse_args(arguments).to
    write_figures(folder, PAGE, figure_rows())


if __name__ == "__main__":
    main()
