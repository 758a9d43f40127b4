"""Verdicts on the claims of the documents, by rule from figures. Never imports torch.

Each judge gives a finding, which follows from its figure and interval alone:

- a figure of a study or a difference of printed figures *holds* if its interval lies in the claimed
  range, *does not hold* if it lies outside, and is *not distinguished* otherwise;
- a printed figure *holds* if its recomputation rounds to it or rounded inputs allow it, *holds with
  a condition* if that takes another convention or a rounding, which is then named, and *does not
  hold* otherwise;
- a test *holds* if its statement is the claim and *does not hold* if it is the opposite, under its
  condition.

A claim has the verdict of its findings where they agree. Otherwise:

- an exact finding refutes it: a wrong figure, or a test that shows the opposite without a
  condition;
- a claim that names its settings or variants (``every``) fails if one finding fails, and is not
  distinguished if one is not;
- a claim of "sometimes" (``some``) fails only if all findings fail;
- any other claim *holds with a condition*, which lists where it holds and where it does not.

A study knows its scale: if its networks are more than ten times smaller than those of the claim,
its figure distinguishes nothing, whatever it says at its own scale, and it does not count where a
printed figure agrees with the claim.

Printed figures that follow from each other do not repeat a measurement: a claim that is no
arithmetic and has no other judge holds with that condition. Comparisons of printed figures count
only where no study and no test decides.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from qkvary.arch.published_quality import BASELINE
from qkvary.papers.claim import (
    ByComparison,
    ByFigure,
    ByStudy,
    ByTest,
    Claim,
    ClaimedRange,
    Quantifier,
)
from qkvary.papers.kept_figures import FindKept, KeptFigure, find_packaged
from qkvary.papers.recomputation import Recomputed, format_value, recompute
from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedTable
from qkvary.text.names import count, listed
from qkvary.text.numbers import MISSING, compact, decimals_of, fixed, interval
from qkvary.text.printed import printed_interval

ClaimVerdict = Literal[
    "holds", "holds with a condition", "does not hold", "not distinguished", "not tested here"
]
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
PRINTED = "by printed figures, which were not measured again here"
"""The condition of a claim that is no arithmetic and that only printed figures judge."""
UNDECIDED = "by printed figures; what was measured here does not decide it"
"""That of one that studies judge too."""
SPREADS: Mapping[tuple[str, str], float] = {
    ("three-projections-table-4", "validation_perplexity"): 0.03,
    ("three-projections-table-4", "train_perplexity"): 0.03,
    ("three-projections-table-10", "perplexity"): 0.03,
    ("three-projections-table-10", "change"): 0.8,
    ("poster-300m", "perplexity"): 0.03,
    ("query-identity-table-2", "validation_loss"): 0.006,
    ("poster-downstream", "accuracy"): 0.5,
    ("key-value-table-2", "average"): 0.01,
    ("key-value-table-3", "average"): 0.01,
    ("three-projections-table-2", "average"): 0.01,
    ("three-projections-table-3", "average"): 0.01,
    ("three-projections-table-3", "mnist"): 0.002,
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
"""The difference of two printed figures of a column that the seed alone may cause, for tables
without deviations; decision 0030 has the source of each."""
RECOMPUTE = "qkvary published"
"""The command that recomputes a published table."""
TEST = "pytest"
"""The command that runs a test, in a clone of the repository."""
SCRIPTS = frozenset(
    {
        *("mlp-basis-transfer", "likeness-over-training", "derived-figures"),
        *("attention-maps", "training-cost"),
    }
)
"""The kept experiments whose figures no study alone gives: ``measure.py`` in their folder of a
clone of the repository finds them again."""
ONE_EACH = frozenset(
    {
        *("three-projections-table-4", "three-projections-table-10", "poster-300m"),
        *("poster-downstream", "query-identity-table-2"),
    }
)
"""The published tables whose measured figures are of one network each."""
SEEDS = "by figures of one network each, whose spread between seeds is not printed"
"""The condition of comparisons in these tables."""
SCALE = 10
"""The factor by which the networks of a study may be smaller than those of a claim."""
NAMES = 2
"""The most findings that a condition names, and the most studies that a scale names."""
_SLACK = 1e-12
"""The tolerance for floating-point errors where an interval ends at the end of a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one judge finds."""

    verdict: ClaimVerdict
    what: str
    """The name of the figure or of the test."""
    figure: str
    """The figure with its interval, or the statement, in words."""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    """The smallest difference that would have been seen."""
    condition: str = ""
    """The cases in which the finding agrees with the claim, or contradicts it; ends a sentence."""
    study: str = ""
    """The study and the number of its runs behind the figure, such as ``lm-small: 5 pairs``."""
    parameters: tuple[int, int] | None = None
    """The parameters of the smallest and the largest of its networks."""
    is_small: bool = False
    """Whether they are too small for the claim."""
    record: str
    """The page, table or test in which the figure stands."""
    check: str
    """The command that finds the figure again."""

    @property
    def printed(self) -> bool:
        """Whether it comes from printed figures alone."""
        return self.check.startswith(RECOMPUTE)

    @property
    def exact(self) -> bool:
        """Whether it is a recomputed figure or a test without a condition, which can refute."""
        recomputed = self.printed and self.low is None
        return recomputed or (self.tested and not self.condition)

    @property
    def tested(self) -> bool:
        """Whether it is the statement of a test."""
        return self.check.startswith(TEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A claim with its verdict and the findings behind it."""

    claim: Claim
    verdict: ClaimVerdict
    condition: str
    """Sentences on where the claim holds and where it does not; empty for none."""
    scale: str
    """The networks behind the verdict; empty if none were trained for it."""
    needs: str
    """A sentence that says what a test requires; empty for a claim that is tested."""
    findings: tuple[Finding, ...]


def judge_claim(claim: Claim, find: FindKept = find_packaged) -> JudgedClaim:
    """Judge a claim.

    Args:
        claim: The claim.
        find: Returns the figures of kept studies.

    Raises:
        KeyError: if a judge names a published figure that does not exist.
    """
    findings: list[Finding] = []
    for judge in claim.judges:
        match judge:
            case ByFigure():
                findings.append(_by_figure(judge))
            case ByComparison():
                findings.append(_by_comparison(judge))
            case ByTest():
                findings.append(_by_test(judge))
            case ByStudy():
                findings.append(_at_scale(_by_study(judge, find(judge)), claim))
    deciding = _deciding(claim, findings)
    verdict, condition = _combine(deciding, claim.quantifier)
    agreeing = [one for one in deciding if one.verdict.startswith("holds")]
    own = claim.kind != "arithmetic" and all(one.printed for one in agreeing)
    if own and verdict.startswith("holds"):
        why = UNDECIDED if any(one.study for one in findings) else PRINTED
        verdict, condition = "holds with a condition", _join(f"It holds {why}.", condition)
    if claim.untested and verdict.startswith("holds"):
        untested = f"{claim.untested[0].upper()}{claim.untested[1:]} is not tested here."
        verdict, condition = "holds with a condition", _join(condition, untested)
    if verdict != "holds":
        condition = _join(condition, _say_small(claim, findings))
    return JudgedClaim(
        claim=claim,
        verdict=verdict,
        condition=condition,
        scale=_scale(claim, verdict, deciding),
        needs=claim.needs or (_missing(claim) if verdict == "not tested here" else ""),
        findings=tuple(findings),
    )


def _at_scale(finding: Finding, claim: Claim) -> Finding:
    """Return a finding that decides nothing if its networks are too small for a claim."""
    if claim.parameters is None or finding.parameters is None:
        return finding
    if SCALE * finding.parameters[1] >= claim.parameters or finding.verdict == "not tested here":
        return finding
    return replace(finding, verdict="not distinguished", condition="", is_small=True)


def _say_small(claim: Claim, findings: Sequence[Finding]) -> str:
    sizes = [one.parameters[1] for one in findings if one.is_small and one.parameters]
    if not sizes or claim.parameters is None:
        return ""
    return (
        f"Networks of at most {_size(max(sizes))} parameters do not decide it: those of the claim "
        f"have {_size(claim.parameters)}."
    )


def _size(parameters: int) -> str:
    return compact(parameters, 2).replace(" ", "")


def _missing(claim: Claim) -> str:
    """Return a sentence that names the tables without a figure for a claim."""
    judges = [judge for judge in claim.judges if isinstance(judge, ByStudy)]
    tables = dict.fromkeys(f"{one.table!r} of the study {one.study}" for one in judges)
    if not tables:
        return "A test needs a measurement like the printed one."
    return f"A test needs figures with their intervals from the table {listed(list(tables))}."


def in_range(low: float, high: float, claimed: ClaimedRange) -> ClaimVerdict:
    """Return the verdict on a figure that lies between two ends.

    An interval that ends where the range does decides nothing.
    """
    if claimed.above + _SLACK < low and high < claimed.below - _SLACK:
        return "holds"
    if high < claimed.above - _SLACK or claimed.below + _SLACK < low:
        return "does not hold"
    return "not distinguished"


def _deciding(claim: Claim, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that count: measurements that decide before comparisons as printed."""
    tested = [one for one in findings if one.verdict != "not tested here"]
    if any(one.printed and one.verdict.startswith("holds") for one in tested):
        tested = [one for one in tested if not one.is_small]
    decided = any(not one.printed and one.verdict != "not distinguished" for one in tested)
    if claim.kind == "arithmetic" or not decided:
        return tested
    return [
        one for one in tested if not one.printed or (one.exact and one.verdict == "does not hold")
    ]


def _combine(findings: Sequence[Finding], quantifier: Quantifier) -> tuple[ClaimVerdict, str]:
    """Return the verdict of several findings, and its condition."""
    some, every = quantifier == "some", quantifier == "every"
    found = {verdict: [one for one in findings if one.verdict == verdict] for verdict in _DECIDED}
    yes = [*found["holds"], *found["holds with a condition"]]
    no, open_ = found["does not hold"], found["not distinguished"]
    if not findings:
        return "not tested here", ""
    holds, fails = _places("It holds", yes, "it"), _places("It does not hold", no, "the opposite")
    unclear = _places("It is not distinguished", open_)
    stated, against = _conditions("It holds", yes), _conditions("It does not hold", no, yes)
    if not yes:
        refuted = bool(no) and not (some and open_)
        return ("does not hold", against) if refuted else ("not distinguished", "")
    if not some and any(every or one.exact for one in no):
        return "does not hold", _join(fails, holds, against)
    if every and open_:
        return "not distinguished", _join(unclear, holds)
    if not no and not open_:
        return ("holds with a condition", stated) if stated else ("holds", "")
    return "holds with a condition", _join(holds, fails, unclear, stated, against)


_DECIDED = CLAIM_VERDICTS[:-1]
_SUPPORTED = CLAIM_VERDICTS[:3]


def _places(start: str, findings: Sequence[Finding], shown: str = "") -> str:
    """Return sentences that count the tests of findings and name their figures."""
    tests = len({one.check for one in findings if one.tested})
    said = f"One test shows {shown}." if tests == 1 else f"{tests} tests show {shown}."
    names = list(dict.fromkeys(one.what for one in findings if not one.tested))
    if len(names) > NAMES:
        names = [*names[: NAMES - 1], f"{len(names) - NAMES + 1} more"]
    return _join(said if tests else "", f"{start} for {listed(names)}." if names else "")


def _conditions(start: str, findings: Sequence[Finding], others: Sequence[Finding] = ()) -> str:
    """Return a sentence for each condition of findings that others do not have too."""
    known = {one.condition for one in others} | {""}
    conditions = dict.fromkeys(one.condition for one in findings)
    return _join(*(f"{start} {one}." for one in conditions if one not in known))


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


@functools.cache
def _recomputed(table: str) -> dict[tuple[str, str], Recomputed]:
    return {(one.figure.row, one.figure.column): one for one in recompute(table)}


def _published(judge: ByFigure) -> tuple[PublishedTable, Recomputed]:
    """Return a printed figure with its table; a KeyError lists the rows and columns."""
    table = load_published(judge.table)
    figure = table.figure(judge.row, judge.column)
    return table, _recomputed(judge.table)[figure.row, figure.column]


def _title(table: PublishedTable, judge: ByFigure) -> str:
    # The column of a table of single figures has no meaning.
    title = next(one.title for one in table.columns if one.key == judge.column)
    return judge.row if title == "figure" else f"{judge.row}, {title}"


def _by_figure(judge: ByFigure) -> Finding:
    table, found = _published(judge)
    verdict, condition = _recomputed_verdict(found, judge)
    value = found.derivation.value if found.derivation else None
    number = MISSING if value is None else format_value(value, found.figure)
    unit = f" ({found.unit})" if found.unit else ""
    said = f"printed {found.figure.printed}, recomputed {number}{unit}"
    return Finding(
        verdict=verdict,
        what=_title(table, judge),
        figure=said if found.derivation else f"printed {found.figure.printed}{unit}",
        value=value if isinstance(value, int | float) else None,
        condition=condition,
        record=table.source,
        check=f"{RECOMPUTE} {judge.table}",
    )


def _recomputed_verdict(found: Recomputed, judge: ByFigure) -> tuple[ClaimVerdict, str]:
    """Return the verdict on a recomputed figure, and its condition."""
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
            # Rounded inputs that allow the figure are no condition; a rounding of its own is.
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
        # Deviations stand beside figures; where none does, the column has one.
        deviation = math.hypot(first.figure.std or 0.0, second.std or 0.0)
        spread = deviation or spread
        low, high = low - most - spread, high - least + spread
        what = f"{what} against {judge.second.row}"
        said = f"{said} against {second.printed}: {_rounded(value, low, high, spread)}"
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


def _rounded(value: float, low: float, high: float, spread: float) -> str:
    """Write a difference of printed figures, whose ends are no confidence interval."""
    decimals = max(decimals_of((high - low) / 2) - 1, 0)
    ends = f"{fixed(low, decimals)} to {fixed(high, decimals)}"
    why = f"rounded, and {spread:g} between runs" if spread else "rounded"
    return f"{fixed(value, decimals, sign=True)} ({why}: {ends})"


def _by_test(judge: ByTest) -> Finding:
    met: ClaimVerdict = "holds with a condition" if judge.condition else "holds"
    return Finding(
        verdict=met if judge.shows == "claim" else "does not hold",
        what=judge.node.rpartition("::")[2],
        figure=judge.says,
        condition=judge.condition,
        record=judge.node.partition("::")[0],
        check=f"{TEST} {judge.node}",
    )


def _by_study(judge: ByStudy, kept: KeptFigure | None) -> Finding:
    pair = f"{judge.variant} against {judge.reference}" if judge.reference else judge.variant
    # Differences to the baseline are named by their variant alone.
    alone = judge.reference.partition("@")[0] == BASELINE
    short = (judge.variant if alone else pair).removesuffix(f" ({judge.table})")
    quantity = f", {judge.quantity.replace('_', ' ')}" if judge.quantity else ""
    what = f"{short} ({judge.study}: {judge.table}{quantity})"
    folder = f"studies/{kept.folder if kept else judge.study}"
    is_script = judge.study in SCRIPTS
    check = f"python {folder}/measure.py" if is_script else f"qkvary study {judge.study}"
    record = f"{folder}/README.md"
    if kept is None:
        missing = "no figure of that name in the tables"
        return Finding(
            verdict="not tested here", what=what, figure=missing, record=record, check=check
        )
    verdict: ClaimVerdict = "not tested here"
    if kept.low is not None and kept.high is not None:
        verdict = in_range(kept.low, kept.high, judge.claimed)
    if verdict == "holds" and judge.condition:
        verdict = "holds with a condition"
    return Finding(
        verdict=verdict,
        what=what,
        figure=f"{pair}: {_amount(judge, kept, verdict)}",
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


def _amount(judge: ByStudy, kept: KeptFigure, verdict: ClaimVerdict) -> str:
    """Write a figure with its interval, and what would have been seen where that matters."""
    unit = f" {judge.unit}" if judge.unit else ""
    signed = bool(judge.reference)
    if kept.low is None or kept.high is None:
        return f"{fixed(kept.value, 3, sign=signed)}{unit}, without an interval"
    decimals = decimals_of((kept.high - kept.low) / 2)
    text = f"{fixed(kept.value, decimals, sign=signed)} {interval(kept.low, kept.high, decimals)}"
    # A share of runs and a median of ratios have no smallest difference.
    if verdict != "not distinguished" or (kept.detectable is None and not kept.paired):
        return f"{text}{unit}"
    if kept.detectable is None:
        return f"{text}{unit}; no possible difference would have been seen"
    seen = fixed(kept.detectable, decimals_of(kept.detectable))
    return f"{text}{unit}; a difference of {seen} would have been seen"


def _runs(kept: KeptFigure) -> str:
    return count(kept.runs, "pair" if kept.paired else "run")


def _scale(claim: Claim, verdict: ClaimVerdict, findings: Sequence[Finding]) -> str:
    """Write the sizes of the networks behind a verdict, and their studies."""
    # What is not distinguished beside a failure is no reason of the verdict.
    alone = verdict in ("does not hold", "not distinguished")
    reasons = [one for one in findings if one.verdict == verdict] if alone else findings
    named = list(dict.fromkeys(one.study for one in reasons if one.study))
    rest = [f"{len(named) - NAMES + 1} more"] if len(named) > NAMES else []
    studies = "; ".join([*named[: NAMES - 1], *rest] if rest else named)
    sizes = [size for one in reasons for size in one.parameters or ()]
    if sizes:
        small, large = _size(min(sizes)), _size(max(sizes))
        size = large if small == large else f"{small} to {large}"
        return f"in networks of {size} parameters ({studies})"
    if studies:
        return f"in {studies}"
    printed = bool(reasons) and all(one.printed for one in reasons)
    fails = verdict == "does not hold" and claim.kind != "arithmetic"
    return "by printed figures" if printed and fails else ""
