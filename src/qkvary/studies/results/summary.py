"""The summary of a study: typed tables that ``analysis`` computes and every report shows.

Reports print these values and compute none of their own. ``None`` always means that there is
no such value (no run, too few runs for an interval, a network without a cache), never zero. A run
with a non-finite result counts as diverged. Never imports torch.
"""

from dataclasses import dataclass
from typing import Literal

from qkvary.studies.published_tables import Recomputes
from qkvary.tasks.config_parts import Scale

Verdict = Literal["better", "worse", "not distinguished", "no interval"]
TableKind = Literal["setting", "task", "average"]
PairUnit = Literal["seed", "setting"]
RunState = Literal["done", "failed", "diverged", "damaged", "missing"]
CostAxis = Literal["cache_bytes_per_token", "parameters", "macs_per_token", "training_seconds"]
FrontierStatus = Literal["frontier", "dominated", "dominated by the means only"]


def metric_title(metric: str, *, is_tested: bool | None = True) -> str:
    """Return the printed name of a metric, including the name of the split that was scored."""
    tested = metric.replace("_", " ")
    validated = tested.replace("test ", "final validation ", 1)
    if is_tested or not metric.startswith("test_"):
        return tested
    return validated if is_tested is False else f"{validated} or {tested}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of planned runs in each state; the numbers add up to ``planned``."""

    planned: int
    done: int
    failed: int
    """Runs that ended with an error. Errors say nothing about the variant."""
    diverged: int
    """Runs with a non-finite loss or result. Divergence is a property of the variant."""
    damaged: int = 0
    missing: int
    """Runs without a record: not started, running, or stopped."""

    @property
    def complete(self) -> bool:
        """Whether every planned run ended with a finite result."""
        return self.done == self.planned

    @property
    def unfinished(self) -> int:
        """The number of runs without a readable record."""
        return self.damaged + self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The paired difference between two variants."""

    baseline: str
    """The study's baseline, or the reference of a contrast."""
    pairs: int
    """Number of finished pairs of runs (same setting, same seed) that give the difference."""
    pairs_planned: int
    units: int
    """Number of independent units that the interval is computed from."""
    unit: PairUnit
    """The independent unit: ``seed``, or ``setting`` with few seeds and many settings."""
    mean: float | None
    """Variant minus baseline (or reference)."""
    low: float | None
    """Lower end of the interval that is corrected for all comparisons of the family."""
    high: float | None
    low_single: float | None
    high_single: float | None
    p_value: float | None
    p_adjusted: float | None
    """Holm's p-value over the family; the verdict follows from the interval alone."""
    comparisons: int
    """Size of the family. ``low``, ``high`` and ``p_adjusted`` are corrected for this size."""
    detectable: float | None
    """The smallest true difference that would be detected with 80 % probability; None without an
    interval, or if it exceeds the largest possible difference."""
    verdict: Verdict
    sentence: str
    """The verdict in words, e.g. ``lower by 0.12 [0.05, 0.19]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solving:
    """Statistics of one variant's runs that solved the task by reaching the threshold."""

    threshold: float
    horizon: int
    """Number of training steps; runs that did not solve the task are censored at this step."""
    runs: int
    """Number of finished and diverged runs; a run that diverged before solving the task counts as
    unsolved."""
    solved: int
    proportion_low: float | None
    proportion_high: float | None
    median_steps: float | None
    """Median number of steps to solve; None if it exceeds the horizon."""
    restricted_mean_steps: float | None
    """Mean of min(steps to solve, horizon)."""
    difference: Difference | None
    """Paired difference of the restricted means; lower is better. None for the baseline."""
    p_sign: float | None
    """p-value of the exact sign test on the same pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanCosts:
    """The costs of a variant's network, or their mean over the networks of a table."""

    parameters: tuple[tuple[str, float], ...]
    """Parameters by part, including ``total``, in the order of the record."""
    macs_per_token: float | None
    macs_per_sequence: float | None
    cache_bytes_per_token: float | None
    """Cache bytes of one token; None for a network without a cache (bidirectional). A state of
    fixed size is divided by the tokens of a sequence."""

    @property
    def parameters_total(self) -> float | None:
        """The total number of parameters, or None if it is not listed."""
        return dict(self.parameters).get("total")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRow:
    """A row of a results table: the results and costs of one variant."""

    variant: str
    counts: Counts
    mean: float | None
    """Mean of the metric over seeds, and then over settings with equal weights."""
    std_seeds: float | None
    """Sample standard deviation over seeds (pooled over settings); None with a single seed."""
    std_settings: float | None
    """Population standard deviation of the settings' means, as in the papers; None for one
    setting."""
    difference: Difference | None
    solving: Solving | None
    """Statistics of solving the task; None if there is no threshold, or the settings have different
    thresholds."""
    training_seconds: float | None
    steps_per_second: float | None
    costs: MeanCosts | None
    learning_rates: tuple[float, ...]
    """The learning rate used in each setting of the table (see ``Summary.learning_rates``)."""
    utilization: float | None = None
    """Mean utilization of the device in training; None if it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTable:
    """The results of all variants in one setting, in one task, or averaged over tasks."""

    name: str
    """Unique within the summary: the setting, the task, or ``average of ...``."""
    kind: TableKind
    tasks: tuple[str, ...]
    settings: tuple[str, ...]
    metric: str
    higher_is_better: bool
    rows: tuple[VariantRow, ...]
    """One row per variant, in the order of the study, including the baseline."""
    notes: tuple[str, ...] = ()
    """The notes of the settings, each once."""
    is_tested: bool | None = True
    """Whether the data of all settings have a test split; None if only some have one."""
    scale: Scale | None = None
    """The metric of a guess and of a perfect network, averaged like the rows; None if not known."""
    is_language: bool = False
    """Whether any task of the table models a language."""

    @property
    def metric_title(self) -> str:
        """The printed name of the metric."""
        return metric_title(self.metric, is_tested=self.is_tested)

    def row(self, variant: str) -> VariantRow:
        """Return the row of a variant."""
        return {row.variant: row for row in self.rows}[variant]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastRow:
    """A planned contrast in one result table."""

    table: str
    kind: TableKind
    metric: str
    higher_is_better: bool
    difference: Difference
    """Variant minus reference. The interval is corrected over all contrasts in averages and tasks,
    or, in a single setting, over all contrasts in single settings."""
    sentence: str
    metric_title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Two variants that the study planned to compare directly."""

    variant: str
    reference: str
    answer: str
    rows: tuple[ContrastRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """A variant in a chart of quality against cost."""

    variant: str
    cost: float
    quality: float
    difference: Difference | None
    standing: FrontierStatus
    dominated_by: tuple[str, ...]
    """Variants that dominate this one in the means: they cost no more, are no worse, and are better
    in one of the two."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """A chart of quality against one cost, with a point for each variant of one table."""

    table: str
    axis: CostAxis
    axis_title: str
    metric: str
    higher_is_better: bool
    points: tuple[FrontierPoint, ...]
    left_out: tuple[str, ...]
    """Variants without a finished run or without this cost."""
    metric_title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningCurve:
    """One quantity over training, averaged over the seeds of one variant in one setting."""

    setting: str
    variant: str
    quantity: str
    """Name of the quantity, such as ``train loss`` or ``validation accuracy``."""
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: tuple[int, ...]
    """Number of runs with a finite value at each step. A run that stopped because it had solved the
    task keeps its last value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateRow:
    """The validation result that a variant reaches in one setting with one learning rate.

    There is one row for each learning rate that was tried.
    """

    setting: str
    variant: str
    learning_rate: float
    counts: Counts
    validation_mean: float | None
    chosen: bool
    at_the_edge: bool
    """Whether the chosen learning rate is the smallest or largest tried, so that a better one may
    lie outside the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCell:
    """A published number, and the number that this study measured."""

    variant: str
    column: str
    published: float | None
    published_std: float | None
    ours: float | None
    ours_std: float | None
    deviation: float | None
    """This study's number minus the published number."""
    recomputes: Recomputes
    recomputed: float | None
    """The number recomputed from the paper's own inputs, if possible."""
    note: str
    repeat_low: float | None = None
    """Lower end of the 95 % prediction interval for the published mean. The interval assumes that
    the published runs resemble this study's runs. None if the number of published runs is unknown,
    or if this study has fewer than two runs."""
    repeat_high: float | None = None

    @property
    def repeats(self) -> bool | None:
        """Whether the published number lies in the prediction interval; None if unknown."""
        if self.published is None or self.repeat_low is None or self.repeat_high is None:
            return None
        return self.repeat_low <= self.published <= self.repeat_high


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison:
    """A published table and this study's results."""

    name: str
    title: str
    source: str
    unit: str
    note: str
    cells: tuple[PublishedCell, ...]
    not_compared: tuple[str, ...]
    """Published rows or columns without a counterpart in this study."""
    notes: tuple[str, ...] = ()
    """The notes of the settings that are compared, each once."""
    published_runs: int | None = None

    @property
    def repeats(self) -> list[bool]:
        """For each measured number with a prediction interval, whether the number lies in it.

        Numbers that are computed from others in the document, such as means, are left out.
        """
        measured = (one.repeats for one in self.cells if one.recomputes == "not checkable")
        return [one for one in measured if one is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A planned run, for the export of runs and the list of problems."""

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
    timing: tuple[tuple[str, float], ...]
    """``tokens_per_second`` of training. Language models also have ``gigaflops_per_second``, and
    ``utilization``, the ratio of ``gigaflops_per_second`` to the speed of one large matmul."""
    steps_to_solve: int | None
    training_seconds: float | None
    total_seconds: float | None
    selected: bool
    """Whether the tables use this run; False if its learning rate was not chosen."""
    is_tested: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The statistical method, printed below every table."""

    confidence: float
    correction: str
    family: int
    interval: str
    power: float
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of a study: all values that reports show."""

    study: str
    question: str
    description: str
    baseline: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    counts: Counts
    headline: tuple[str, ...]
    """The answer in a few plain sentences; empty without a finished pair of runs."""
    headline_table: str
    """The ``ResultTable.name`` of the table that the headline is about, or empty."""
    answers: tuple[str, ...]
    """Sentences that state every difference from the baseline, grouped by verdict."""
    commands: tuple[str, ...]
    """The commands that reproduce the runs and the report."""
    caveats: tuple[str, ...]
    """Reasons to be careful, such as failed or missing runs or a single seed."""
    method: Method
    tables: tuple[ResultTable, ...]
    """First averages over tasks, then tasks, then settings. A task with one setting has no separate
    table of the setting."""
    contrasts: tuple[Contrast, ...]
    frontiers: tuple[Frontier, ...]
    curves: tuple[LearningCurve, ...]
    learning_rates: tuple[LearningRateRow, ...]
    """The learning rates that were tried and chosen; empty if the study does not choose any."""
    published: tuple[PublishedComparison, ...]
    runs: tuple[RunRow, ...]
    environments: tuple[tuple[tuple[str, str], ...], ...]
    """The distinct machines and versions of the runs. Device and kernel are left out: they follow
    from the configuration."""
    training_seconds: float
    total_seconds: float
    started: str | None
    ended: str | None

    def table(self, name: str) -> ResultTable:
        """Return a table by name."""
        return {table.name: table for table in self.tables}[name]
