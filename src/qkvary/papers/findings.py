"""Derives the verdict of each figure or test that judges a claim. Never imports torch.

- A figure of a study, or a difference of published numbers, *holds* if its interval lies in the
  claimed range, *does not hold* if its interval lies outside, and is *not distinguished* otherwise.
- A published number *holds* if the recomputed number rounds to it, or could round to it because the
  inputs are rounded. It *holds with a condition* if it follows only under another convention or
  rounding, which the condition names. Otherwise it *does not hold*.
- A test *holds* if it states the claim; if the test applies only under a condition, it *holds with
  a condition*. It *does not hold* if it states the opposite of the claim.
- A test or figure with the mark ``neither`` is *not distinguished*.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from qkvary.arch.published_quality import BASELINE
from qkvary.papers.claim import ByComparison, ByFigure, ByStudy, ByTest, ClaimedRange, Judge, Shown
from qkvary.papers.kept_figures import FindKept, KeptFigure
from qkvary.papers.recomputation import Recomputed, format_value, recompute
from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure, PublishedTable
from qkvary.text.names import count
from qkvary.text.numbers import MISSING, decimals_of, fixed, interval
from qkvary.text.printed import printed_interval

ClaimVerdict = Literal[
    "holds", "holds with a condition", "does not hold", "not distinguished", "not tested here"
]
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
SPREADS: Mapping[tuple[str, str], float] = {
    ("three-projections-table-4", "validation_perplexity"): 0.03,
    ("three-projections-table-4", "train_perplexity"): 0.03,
    ("three-projections-table-10", "perplexity"): 0.03,
    ("three-projections-table-10", "change"): 0.8,
    ("poster-300m", "perplexity"): 0.03,
    ("query-identity-table-2", "validation_loss"): 0.006,
    ("poster-downstream", "accuracy"): 1.4,
    ("key-value-table-2", "average"): 0.08,
    ("key-value-table-3", "average"): 0.004,
    ("three-projections-table-2", "average"): 0.08,
    ("three-projections-table-3", "average"): 0.004,
    ("three-projections-table-3", "mnist"): 0.0008,
    ("three-projections-table-3", "fashion_mnist"): 0.0024,
    ("three-projections-table-3", "cifar10"): 0.012,
    ("three-projections-table-3", "cifar100"): 0.010,
    ("three-projections-table-3", "tiny_imagenet"): 0.016,
    ("three-projections-table-3", "anomaly"): 0.012,
    ("key-value-notebook-characters", "validation"): 0.018,
    ("key-value-notebook-characters-1000", "early"): 0.012,
    ("key-value-notebook-numbers", "loss_mean"): 0.12,
    **{
        ("key-value-notebook-translation", f"bleu_{width}_{heads}_run_{run}"): 0.025
        for width in (64, 128)
        for heads in (1, 4)
        for run in (0, 1)
    },
}
"""Assumed spread of the difference between two published numbers, by table and column. It is used
if the table prints no standard deviations. Decision 0030 gives the sources."""
STANDARD_ERRORS = 2
"""Assumed spread of the difference between means over settings, as a number of standard errors."""
CONFIGURATIONS: Mapping[str, int] = {
    **dict.fromkeys(("mnist", "fashion_mnist"), 48),
    **dict.fromkeys(("cifar10", "cifar100"), 24),
    "anomaly": 8,
}
"""Number of configurations in each mean of table 3 of "Key-Value Transformer". The text lists the
configurations; for CIFAR, only the patch size of the code is counted."""
OVER_SETTINGS = frozenset(
    {
        *("key-value-table-2", "key-value-table-3"),
        *("three-projections-table-2", "three-projections-table-3"),
    }
)
"""Published tables of means over settings. Their deviations are between settings, not runs."""
ONE_SETTING = ("three-projections-table-3", "tiny_imagenet")
"""The only column in the tables of ``OVER_SETTINGS`` that has a single setting. Its assumed spread
is the standard deviation of the most similar task, CIFAR-100."""
ON_TEST_SETS = "poster-downstream"
"""The table whose assumed spread is that of its test sets, not of networks."""
RECOMPUTE = "qkvary published"
"""The command that recomputes a published table."""
TEST = "pytest"
"""The command that runs a test in a clone of the repository."""
SCRIPTS = frozenset(
    {
        *("mlp-basis-transfer", "likeness-over-training", "derived-figures"),
        *("attention-maps", "training-cost"),
    }
)
"""Experiments whose figures come from several studies or from no study. In a clone, the script
``measure.py`` in the folder of an experiment reproduces its figures."""
ONE_EACH = frozenset(
    {
        *("three-projections-table-4", "three-projections-table-10", "poster-300m"),
        "query-identity-table-2",
    }
)
"""Published tables of one network per figure whose assumed spread is between seeds. The spread of
``ON_TEST_SETS`` is not."""
SEEDS = (
    "according to published numbers that each come from a single network; no spread between seeds "
    "is printed, so that one is assumed"
)
"""The condition of a verdict that compares two figures of a table in ``ONE_EACH``."""
_SUPPORTED = CLAIM_VERDICTS[:3]
_SLACK = 1e-12
"""The maximum difference at which ends of an interval and of a range count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict of one judge on a claim, with the figure or test that decides it."""

    verdict: ClaimVerdict
    what: str
    """The name of the figure or of the test."""
    figure: str
    """The figure with its interval, or the statement of the test."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    """The smallest difference that the study would have detected."""
    condition: str = ""
    """The condition of the verdict, worded to follow "It holds" or "It does not hold"."""
    study: str = ""
    """The study of the figure and its number of runs, as in ``lm-small: 5 pairs of runs``."""
    parameters: tuple[int, int] | None = None
    """Parameters of the smallest and the largest network in the study."""
    is_small: bool = False
    """True if the networks are too small for the claim."""
    is_only_small: bool = False
    """True if the size of the networks is the only reason why the finding is undecided."""
    record: str
    """The page, table or test that has the figure."""
    check: str
    """The command that reproduces the figure."""

    @property
    def printed(self) -> bool:
        """True if the finding comes only from published numbers."""
        return self.check.startswith(RECOMPUTE)

    @property
    def exact(self) -> bool:
        """True if the finding alone can refute a claim.

        Such a finding is a recomputed figure, or a test without a condition.
        """
        recomputed = self.printed and self.low is None
        return recomputed or (self.tested and not self.condition)

    @property
    def tested(self) -> bool:
        """True if the finding comes from a test."""
        return self.check.startswith(TEST)


def find(judge: Judge, kept: FindKept) -> Finding:
    """Return the finding of a judge."""
    match judge:
        case ByFigure():
            return _by_figure(judge)
        case ByComparison():
            return _by_comparison(judge)
        case ByTest():
            return _by_test(judge)
        case ByStudy():
            return _by_study(judge, kept(judge))


def in_range(low: float, high: float, claimed: ClaimedRange) -> ClaimVerdict:
    """Return the verdict on a figure whose interval goes from ``low`` to ``high``.

    If the interval ends exactly where the claimed range ends, the claim is not distinguished.
    """
    if claimed.above + _SLACK < low and high < claimed.below - _SLACK:
        return "holds"
    if high < claimed.above - _SLACK or claimed.below + _SLACK < low:
        return "does not hold"
    return "not distinguished"


@functools.cache
def _recomputed(table: str) -> dict[tuple[str, str], Recomputed]:
    return {(one.figure.row, one.figure.column): one for one in recompute(table)}


def _published(judge: ByFigure) -> tuple[PublishedTable, Recomputed]:
    """Return a published number and its table, or raise a KeyError that lists the choices."""
    table = load_published(judge.table)
    figure = table.figure(judge.row, judge.column)
    return table, _recomputed(judge.table)[figure.row, figure.column]


def _title(table: PublishedTable, judge: ByFigure) -> str:
    # In a table of single figures, the column's title has no meaning.
    title = next(one.title for one in table.columns if one.key == judge.column)
    return judge.row if title == "figure" else f"{judge.row}, {title}"


def _by_figure(judge: ByFigure) -> Finding:
    table, found = _published(judge)
    verdict, condition = _recomputed_verdict(found, judge)
    value = found.derivation.value if found.derivation else None
    number = MISSING if value is None else format_value(value, found.figure)
    unit = f" ({found.unit})" if found.unit else ""
    printed = f"{'in the code' if found.figure.in_code else 'printed'} {found.figure.printed}"
    return Finding(
        verdict=verdict,
        what=_title(table, judge),
        figure=f"{printed}, recomputed {number}{unit}" if found.derivation else printed + unit,
        value=value if isinstance(value, int | float) else None,
        condition=condition,
        record=table.source,
        check=f"{RECOMPUTE} {judge.table}",
    )


def _recomputed_verdict(found: Recomputed, judge: ByFigure) -> tuple[ClaimVerdict, str]:
    value = found.derivation.value if found.derivation else None
    near = f"as a rounding of {MISSING if value is None else format_value(value, found.figure)}"
    match found.verdict:
        case "equal":
            return "holds", ""
        case "wrong":
            return "does not hold", ""
        case "measured" | "stated":
            return "not tested here", ""
        case "rounding":
            # Rounded inputs that allow the figure are not a condition; other rounding is.
            allowed = found.derivation is not None and found.derivation.spread is not None
            condition = "" if allowed else near
        case "other convention":
            condition = f"with {found.alternative.convention}" if found.alternative else ""
            if judge.literal:
                return "does not hold", f"as it is stated, but would {condition}"
    return ("holds with a condition" if condition else "holds"), condition


def _by_comparison(judge: ByComparison) -> Finding:
    table, first = _published(judge.first)
    value, (low, high) = first.figure.value or 0.0, printed_interval(first.figure)
    what, said = _title(table, judge.first), f"printed {first.figure.printed}"
    spread = SPREADS.get((judge.first.table, judge.first.column), 0.0)
    if judge.second is not None:
        second = _published(judge.second)[1].figure
        least, most = printed_interval(second)
        value = value - (second.value or 0.0)
        # Standard deviations stand next to the figures; otherwise the column has a common one.
        error = STANDARD_ERRORS * _standard_error(first.figure, second)
        spread = error or spread
        low, high = low - most - spread, high - least + spread
        pair = f"{judge.first.row} against {judge.second.row}"
        column = what.removeprefix(judge.first.row).removeprefix(", ")
        what = f"{pair} ({column})" if column else pair
        more = f" and {_chance(judge.first, spread, error)}" if spread else ""
        why = f"with rounding{more}"
        said = f"{said} against {second.printed}: {_rounded(value, low, high, why)}"
    verdict = in_range(low, high, judge.claimed)
    condition = SEEDS if spread and judge.first.table in ONE_EACH else ""
    if verdict == "holds" and condition:
        verdict = "holds with a condition"
    return Finding(
        verdict=verdict,
        what=what,
        figure=said,
        value=value,
        low=low,
        high=high,
        condition=condition if verdict in _SUPPORTED else "",
        record=table.source,
        check=f"{RECOMPUTE} {judge.first.table}",
    )


def _standard_error(first: PublishedFigure, second: PublishedFigure) -> float:
    """Return the standard error of the difference of two means over configurations.

    It is zero if the table prints no standard deviations.
    """
    deviation = math.hypot(first.std or 0.0, second.std or 0.0)
    return deviation / math.sqrt(CONFIGURATIONS[first.column]) if deviation else 0.0


def _chance(judge: ByFigure, spread: float, error: float) -> str:
    """Return a phrase for the assumed spread in a comparison of published numbers."""
    if error:
        settings = CONFIGURATIONS[judge.column]
        return f"{spread:.1g}, two standard errors over {settings} settings"
    if (judge.table, judge.column) == ONE_SETTING:
        return f"an assumed spread of {spread:.2g} between settings of CIFAR-100"
    if judge.table in OVER_SETTINGS:
        return f"an assumed {spread:.2g}, two standard errors over settings"
    if judge.table == ON_TEST_SETS:
        return f"an assumed {spread:.2g}, two standard errors over questions"
    return f"an assumed spread of {spread:.2g} between runs"


def _rounded(value: float, low: float, high: float, why: str) -> str:
    """Format the difference between two published numbers, with its interval.

    ``why`` is the reason for the interval, such as rounding.
    """
    decimals = decimals_of((high - low) / 2)
    ends = f"{fixed(low, decimals)} to {fixed(high, decimals)}"
    return f"{fixed(value, decimals, sign=True)} ({why}: {ends})"


def _by_test(judge: ByTest) -> Finding:
    met: ClaimVerdict = "holds with a condition" if judge.condition else "holds"
    verdicts: dict[Shown, ClaimVerdict] = {
        "claim": met,
        "opposite": "does not hold",
        "neither": "not distinguished",
    }
    return Finding(
        verdict=verdicts[judge.shows],
        what=judge.node.rpartition("::")[2],
        figure=judge.says,
        condition=judge.condition,
        record=judge.node.partition("::")[0],
        check=f"{TEST} {judge.node}",
    )


def _by_study(judge: ByStudy, kept: KeptFigure | None) -> Finding:
    pair = f"{judge.variant} against {judge.reference}" if judge.reference else judge.variant
    # A difference to the baseline is named by its variant alone.
    alone = judge.reference.partition("@")[0] == BASELINE
    short = (judge.variant if alone else pair).removesuffix(f" ({judge.table})")
    quantity = f", {judge.quantity.replace('_', ' ')}" if judge.quantity else ""
    what = f"{short} ({judge.study}: {judge.table}{quantity})"
    folder = f"studies/{kept.folder if kept else judge.study}"
    is_script = judge.study in SCRIPTS
    check = f"python {folder}/measure.py" if is_script else f"qkvary study {judge.study}"
    record = f"{folder}/README.md"
    if kept is None:
        missing = "the tables have no figure with this name"
        return Finding(
            verdict="not tested here", what=what, figure=missing, record=record, check=check
        )
    verdict: ClaimVerdict = "not tested here"
    if kept.low is not None and kept.high is not None:
        verdict = in_range(kept.low, kept.high, judge.claimed)
    if verdict == "holds" and judge.condition:
        verdict = "holds with a condition"
    said = _amount(judge, kept, verdict)
    if judge.shows == "neither":
        verdict = "not distinguished"
    return Finding(
        verdict=verdict,
        what=what,
        figure=f"{pair}{_in_table(judge)}: {said}",
        value=kept.value,
        low=kept.low,
        high=kept.high,
        detectable=kept.detectable,
        condition=judge.condition if verdict in _SUPPORTED else "",
        study=f"{judge.study}: {_runs(kept)}",
        parameters=kept.parameters,
        record=record,
        check=check,
    )


def _in_table(judge: ByStudy) -> str:
    """Return the table of a figure in brackets; empty if the variant already names the table."""
    return "" if f"({judge.table})" in judge.variant else f" ({judge.table})"


def _amount(judge: ByStudy, kept: KeptFigure, verdict: ClaimVerdict) -> str:
    """Format a figure with its interval.

    If the verdict is "not distinguished", add the smallest difference that was detectable.
    """
    unit = f" {judge.unit}" if judge.unit else ""
    signed = bool(judge.reference)
    if kept.low is None or kept.high is None:
        return f"{fixed(kept.value, 3, sign=signed)}{unit}, without an interval"
    decimals = decimals_of((kept.high - kept.low) / 2)
    text = f"{fixed(kept.value, decimals, sign=signed)} {interval(kept.low, kept.high, decimals)}"
    # A share of runs or a median of ratios has no smallest difference.
    if verdict != "not distinguished" or (kept.detectable is None and not kept.paired):
        return f"{text}{unit}"
    if kept.detectable is None:
        return (
            f"{text}{unit}; the study is too small to detect even the largest possible difference"
        )
    seen = fixed(kept.detectable, decimals_of(kept.detectable))
    return f"{text}{unit}; the study could have detected a difference of {seen}"


def _runs(kept: KeptFigure) -> str:
    if kept.paired:
        return count(kept.runs, "pair of runs", "pairs of runs")
    return count(kept.runs, "run")
