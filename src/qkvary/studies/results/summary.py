"""What a study found, as typed tables that every report reads.

The terminal, the page, the CSV and the Markdown print these values; none of them computes a figure
of its own. The tables are filled by ``analysis``. This module holds no arithmetic and never imports
torch.

Everywhere, ``None`` means "there is no such figure" (nothing was run, too few runs for an interval,
a network without a cache), never zero. A non-finite result is not a figure: the run counts as
diverged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["better", "worse", "not distinguished", "no interval"]
TableKind = Literal["setting", "task", "average"]
PairUnit = Literal["seed", "setting"]
RunState = Literal["done", "failed", "diverged", "missing"]
CostAxis = Literal["cache_bytes_per_token", "parameters", "macs_per_token", "training_seconds"]
Standing = Literal["frontier", "dominated", "dominated by the means only"]
Recomputes = Literal["yes", "no", "rounding", "other convention", "not checkable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many runs were planned and what became of them; the four parts always add up."""

    planned: int
    done: int
    failed: int
    """Runs that ended with an error: they say nothing about the variant."""
    diverged: int
    """Runs whose loss or result stopped being finite: they do say something about the variant."""
    missing: int
    """Runs without a record: not started, running, or stopped."""

    @property
    def complete(self) -> bool:
        """Whether every planned run ended with a finite result."""
        return self.done == self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of one variant to another over pairs that share everything else."""

    baseline: str
    """The other one: the study's baseline, or the reference of a contrast."""
    pairs: int
    """Pairs of finished runs (same setting, same seed) that the difference was computed from."""
    pairs_planned: int
    units: int
    """Independent values behind the interval: seeds, or settings where few seeds were planned."""
    unit: PairUnit
    """What was drawn at random: ``seed`` (the settings are fixed) or ``setting``."""
    mean: float | None
    """Variant minus baseline (or reference); of complete runs, the difference of their means."""
    low: float | None
    """Lower end of the interval that holds for all comparisons of the family at once."""
    high: float | None
    low_single: float | None
    """Lower end of the interval for this comparison alone."""
    high_single: float | None
    p_value: float | None
    p_adjusted: float | None
    """Holm's p-value over the family; the verdict follows the interval, which is never narrower."""
    comparisons: int
    """Size of the family that ``low``, ``high`` and ``p_adjusted`` are corrected for."""
    detectable: float | None
    """The smallest true difference that would have been seen with 80 % probability; None without an
    interval, or where even the largest possible difference would not."""
    verdict: Verdict
    sentence: str
    """The verdict in words, e.g. ``lower by 0.12 [0.05, 0.19]``; ready to print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """How many runs reached the threshold, and after how many steps."""

    threshold: float
    horizon: int
    """Steps of training: a run that had not solved the task by then is only known to need more."""
    runs: int
    """Finished and diverged runs; one that diverged before it solved the task is unsolved."""
    solved: int
    proportion_low: float | None
    """Wilson interval of the proportion solved."""
    proportion_high: float | None
    median_steps: float | None
    """None when the middle run did not solve the task: the median is beyond the horizon."""
    restricted_mean_steps: float | None
    """Mean of min(steps to solve, horizon)."""
    difference: Difference | None
    """Paired difference of the restricted means; lower is better. None for the baseline."""
    p_sign: float | None
    """Exact sign test on the same pairs, which needs no distribution (and at least six pairs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """What one network of the variant costs; the mean where a table covers several networks."""

    parameters: tuple[tuple[str, float], ...]
    """Parameters by part, ``total`` among them, in the order of the record."""
    macs_per_token: float | None
    macs_per_sequence: float | None
    cache_bytes_per_token: float | None
    """None for a network that keeps no cache (bidirectional)."""

    @property
    def parameters_total(self) -> float | None:
        """The part named ``total``, or None."""
        return dict(self.parameters).get("total")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow:
    """One variant in one table."""

    variant: str
    counts: Counts
    mean: float | None
    """Mean of the metric: over seeds, and then, unweighted, over settings."""
    std_seeds: float | None
    """Sample standard deviation over seeds (pooled over settings); None with a single seed."""
    std_settings: float | None
    """Population standard deviation over the settings' means, as in the papers; None for one."""
    difference: Difference | None
    """None for the baseline itself."""
    solving: Solving | None
    """None where the study names no threshold, or the thresholds of the settings differ."""
    training_seconds: float | None
    """Mean seconds of training of one run."""
    steps_per_second: float | None
    costs: CostRow | None
    learning_rates: tuple[float, ...]
    """The learning rate used in each setting of the table (see ``Summary.learning_rates``)."""
    utilization: float | None = None
    """Mean share of the rate of one large product that training reached; None where no run has
    measured it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """All variants in one setting, in one task (over its settings), or over several tasks."""

    name: str
    """Unique within the summary: the setting, the task, or ``average of ...``."""
    kind: TableKind
    tasks: tuple[str, ...]
    settings: tuple[str, ...]
    metric: str
    higher_is_better: bool
    rows: tuple[VariantRow, ...]
    """In the order of the study's variants, the baseline included."""

    def row(self, variant: str) -> VariantRow:
        """Return the row of a variant; KeyError names the variants there are."""
        for row in self.rows:
            if row.variant == variant:
                return row
        raise KeyError(
            f"no variant {variant!r} in {self.name!r}; there are {[r.variant for r in self.rows]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastRow:
    """A planned contrast in one result table."""

    table: str
    """``ResultTable.name``."""
    kind: TableKind
    metric: str
    higher_is_better: bool
    difference: Difference
    """Variant minus reference; corrected over all contrasts in all averages and tasks, or over all
    contrasts in all single settings: families apart from that of the baseline."""
    sentence: str
    """The verdict with both names; ready to print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Two variants that the study planned to compare directly."""

    variant: str
    reference: str
    answer: str
    """What the data say about the averages and tasks, in one sentence."""
    rows: tuple[ContrastRow, ...]
    """One for each result table, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One variant in a chart of quality against a cost."""

    variant: str
    cost: float
    quality: float
    difference: Difference | None
    """To the baseline, for error bars and tooltips."""
    standing: Standing
    dominated_by: tuple[str, ...]
    """Variants that by the means cost no more and are no worse (one of the two strictly)."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Quality against one cost over the variants of one table."""

    table: str
    """``ResultTable.name``."""
    axis: CostAxis
    axis_title: str
    metric: str
    higher_is_better: bool
    points: tuple[FrontierPoint, ...]
    left_out: tuple[str, ...]
    """Variants without a finished run or without this cost: not in the chart, so named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """One quantity over training, averaged over the seeds of one variant in one setting."""

    setting: str
    variant: str
    quantity: str
    """``train loss``, ``validation loss``, ``validation accuracy``, ..."""
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    """Mean accumulated training seconds at each step."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    """Smallest value over the runs: the band shows every seed."""
    high: tuple[float, ...]
    runs: tuple[int, ...]
    """How many runs have a finite value at this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateRow:
    """One learning rate of one variant in one setting, when each variant may choose its own."""

    setting: str
    variant: str
    learning_rate: float
    counts: Counts
    validation_mean: float | None
    chosen: bool
    at_the_edge: bool
    """Chosen, and the smallest or largest of those tried: the best may lie outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCell:
    """One published figure beside ours."""

    variant: str
    column: str
    published: float | None
    published_std: float | None
    ours: float | None
    ours_std: float | None
    deviation: float | None
    """Ours minus published."""
    recomputes: Recomputes
    recomputed: float | None
    """What the published figure should be by the paper's own inputs, where that can be computed."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison:
    """One published table beside this study's results."""

    name: str
    title: str
    source: str
    unit: str
    note: str
    cells: tuple[PublishedCell, ...]
    not_compared: tuple[str, ...]
    """Published rows or columns that this study has no counterpart of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One planned run, for the export of every run and the list of problems."""

    setting: str
    task: str
    variant: str
    seed: int
    learning_rate: float
    state: RunState
    run_key: str | None
    message: str
    metric: str | None
    value: float | None
    metrics: tuple[tuple[str, float | None], ...]
    steps_to_solve: int | None
    training_seconds: float | None
    total_seconds: float | None
    selected: bool
    """Whether the tables use this run (False for learning rates that were not chosen)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How the intervals were made; printed below every table."""

    confidence: float
    correction: str
    family: int
    interval: str
    power: float
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Everything a report of a study says."""

    study: str
    question: str
    description: str
    baseline: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    counts: Counts
    answers: tuple[str, ...]
    """The answer first: which differences the data support, and what could not be told apart."""
    commands: tuple[str, ...]
    """What to type to make the runs and the report again."""
    caveats: tuple[str, ...]
    """What a reader must know before believing the answer: failed runs, one seed, open runs, ..."""
    method: Method
    tables: tuple[ResultTable, ...]
    """Averages over tasks, then tasks, then settings; a task with one setting has one table."""
    contrasts: tuple[Contrast, ...]
    """The direct comparisons that the study planned besides those with the baseline."""
    frontiers: tuple[Frontier, ...]
    curves: tuple[LearningCurve, ...]
    learning_rates: tuple[LearningRateRow, ...]
    """Empty unless the study lets each variant choose its learning rate."""
    published: tuple[PublishedComparison, ...]
    runs: tuple[RunRow, ...]
    environments: tuple[tuple[tuple[str, str], ...], ...]
    """The distinct machines and versions that the runs were made with; what a configuration
    decides (device, attention kernel) is no part of them."""
    training_seconds: float
    total_seconds: float
    started: str | None
    ended: str | None

    @property
    def problems(self) -> tuple[RunRow, ...]:
        """The runs that failed or diverged, with their messages."""
        return tuple(run for run in self.runs if run.state in ("failed", "diverged"))

    def table(self, name: str) -> ResultTable:
        """Return a table by its name; KeyError names the tables there are."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(f"no table {name!r}; there are {[t.name for t in self.tables]}")
