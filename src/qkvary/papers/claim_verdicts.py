"""Derives the verdict on each claim from its judges, by rule. Never imports torch.

Each judge of a claim (a published number, a comparison, a test or a study) gives a finding. The
module ``findings`` derives the findings. If all findings of a claim agree, the claim has their
verdict. If they disagree, the quantifier of the claim decides:

- A claim that something happens sometimes (``some``) fails only if all findings fail.
- Any other claim fails if an exact finding fails: a wrong figure, or a test that shows the opposite
  without a condition.
- A claim that names its settings or variants (``every``) fails if any finding fails. If no finding
  fails but one is *not distinguished* (undecided), the claim is *not distinguished*.
- A claim without a quantifier *holds with a condition* if at least one finding supports it. The
  condition lists where the claim holds and where it does not.

The size of the networks counts. A study is undecided if its networks are more than ten times
smaller than those of the claim. Such a study is ignored if a published number agrees with the
claim. A study that contradicts the claim is undecided too if a study of the same variants and task
with larger networks does not contradict the claim.

Published numbers are not new measurements. If a claim is not about arithmetic and only printed
figures support it, the claim holds with a condition that says so. Comparisons of published numbers
that do not contradict the claim count only if neither a study nor a test decides it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qkvary.papers.claim import ByStudy, Claim, Judge, Quantifier
from qkvary.papers.findings import CLAIM_VERDICTS, ClaimVerdict, Finding
from qkvary.papers.findings import find as find_one
from qkvary.papers.kept_figures import FindKept, find_packaged
from qkvary.text.names import listed
from qkvary.text.numbers import compact

PRINTED = "according to published numbers, which this project did not measure again"
"""Condition of a claim that only published numbers support, if no study judges it."""
UNDECIDED = (
    "according to published numbers; this project's own measurements do not decide the claim"
)
"""Condition of a claim that only published numbers support, if its studies do not decide it."""
SCALE = 10
"""A study is undecided if its networks are smaller than the claim's by more than this factor."""
NAMES = 2
"""Maximum number of names in a list of findings (``condition``) or of studies (``scale``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A claim with its verdict and the findings that decide it."""

    claim: Claim
    verdict: ClaimVerdict
    condition: str
    """Sentences that say when the claim holds and when it does not, what is not tested, and which
    networks are too small. Empty if unconditional."""
    scale: str
    """Sizes of the networks that decide the verdict, and their studies; empty without networks."""
    needs: str
    """A sentence on the requirements of a test; empty for a claim that is tested."""
    findings: tuple[Finding, ...]


def judge_claim(claim: Claim, find: FindKept = find_packaged) -> JudgedClaim:
    """Return the verdict on a claim, derived from the findings of its judges."""
    found = [_at_scale(find_one(judge, find), claim) for judge in claim.judges]
    findings = _outweigh(claim.judges, found)
    deciding = _deciding(claim, findings)
    verdict, condition = _combine(deciding, claim.quantifier)
    agreeing = [one for one in deciding if one.verdict.startswith("holds")]
    own = claim.kind != "arithmetic" and all(one.printed for one in agreeing)
    if own and verdict.startswith("holds"):
        why = UNDECIDED if any(one.study for one in findings) else PRINTED
        verdict, condition = "holds with a condition", _join(f"It holds {why}.", condition)
    if claim.untested and verdict != "does not hold":
        verdict = "holds with a condition" if verdict == "holds" else verdict
        untested = f"{claim.untested[0].upper()}{claim.untested[1:]} is not tested here."
        condition = _join(condition, untested)
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
    """Return the finding, marked as undecided if its networks are too small for the claim."""
    if claim.parameters is None or finding.parameters is None:
        return finding
    if SCALE * finding.parameters[1] >= claim.parameters or finding.verdict == "not tested here":
        return finding
    figure = f"{finding.figure}, {finding.condition}" if finding.condition else finding.figure
    decided = finding.verdict != "not distinguished"
    return replace(
        finding, verdict="not distinguished", figure=figure, is_small=True, is_only_small=decided
    )


def _outweigh(judges: Sequence[Judge], findings: Sequence[Finding]) -> list[Finding]:
    """Mark each refuting finding as undecided if a larger study does not refute the claim."""
    pairs = list(zip(judges, findings, strict=True))
    return [_weigh(judge, finding, pairs) for judge, finding in pairs]


def _weigh(judge: Judge, finding: Finding, pairs: Sequence[tuple[Judge, Finding]]) -> Finding:
    if not isinstance(judge, ByStudy) or finding.verdict != "does not hold":
        return finding
    for other, found in pairs:
        if (
            isinstance(other, ByStudy)
            and (other.variant, other.reference) == (judge.variant, judge.reference)
            and other.tasks & judge.tasks
            and found.verdict != "does not hold"
            and max(found.parameters or (0,)) > max(finding.parameters or (math.inf,))
        ):
            is_open = found.verdict == "not distinguished"
            says = "leave it undecided" if is_open else "do not show it"
            figure = f"{finding.figure}; larger networks ({other.study}) {says}"
            return replace(finding, verdict="not distinguished", condition="", figure=figure)
    return finding


def _say_small(claim: Claim, findings: Sequence[Finding]) -> str:
    sizes = [one.parameters[1] for one in findings if one.is_small and one.parameters]
    if not sizes or claim.parameters is None:
        return ""
    return (
        f"Networks of at most {_size(max(sizes))} parameters cannot settle this claim, which is "
        f"about networks of {_size(claim.parameters)} parameters."
    )


def _size(parameters: int) -> str:
    # The documents write billions as 1.2B.
    return compact(parameters, 2).replace(" ", "").replace("G", "B")


def _missing(claim: Claim) -> str:
    """Return a sentence on the requirements of a test of the claim."""
    judges = [judge for judge in claim.judges if isinstance(judge, ByStudy)]
    tables = dict.fromkeys(f"{one.table!r} of the study {one.study}" for one in judges)
    if not tables:
        return "To test this claim, one needs a measurement like the one printed in the document."
    where = f"in the table {listed(list(tables))}"
    return f"To test this claim, one needs figures with intervals {where}."


def _deciding(claim: Claim, findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that decide the claim.

    Comparisons of published numbers are left out if they support the claim and a study or test
    decides it.
    """
    tested = [one for one in findings if one.verdict != "not tested here"]
    if any(one.printed and one.verdict.startswith("holds") for one in tested):
        tested = [one for one in tested if not one.is_small]
    decided = any(not one.printed and one.verdict != "not distinguished" for one in tested)
    if claim.kind == "arithmetic" or not decided:
        return tested
    return [one for one in tested if not one.printed or one.verdict == "does not hold"]


def _combine(findings: Sequence[Finding], quantifier: Quantifier) -> tuple[ClaimVerdict, str]:
    """Combine findings into one verdict and the sentences of its condition."""
    some, every = quantifier == "some", quantifier == "every"
    found = {verdict: [one for one in findings if one.verdict == verdict] for verdict in _DECIDED}
    yes = [*found["holds"], *found["holds with a condition"]]
    no, open_ = found["does not hold"], found["not distinguished"]
    if not findings:
        return "not tested here", ""
    holds, fails = (
        _places("It holds", yes, "that it holds"),
        _places("It does not hold", no, "the opposite"),
    )
    unclear = _places("It is not distinguished", open_, "neither")
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


def _places(start: str, findings: Sequence[Finding], shown: str = "") -> str:
    """Return a sentence on the findings from tests, and a sentence on the other findings.

    The first sentence says that the tests show ``shown``. The second sentence begins with ``start``
    and names the figures of the other findings.
    """
    tests = len({one.check for one in findings if one.tested})
    said = f"One test shows {shown}." if tests == 1 else f"{tests} tests show {shown}."
    names = list(dict.fromkeys(one.what for one in findings if not one.tested))
    if len(names) > NAMES:
        names = [*names[: NAMES - 1], f"{len(names) - NAMES + 1} more"]
    return _join(said if tests else "", f"{start} for {listed(names)}." if names else "")


def _conditions(start: str, findings: Sequence[Finding], others: Sequence[Finding] = ()) -> str:
    """Return a sentence for each condition that occurs in ``findings`` but not in ``others``."""
    known = {one.condition for one in others} | {""}
    conditions = dict.fromkeys(one.condition for one in findings)
    return _join(*(f"{start} {one}." for one in conditions if one not in known))


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _scale(claim: Claim, verdict: ClaimVerdict, findings: Sequence[Finding]) -> str:
    """Return a phrase with the sizes of the networks that decide a verdict, and their studies."""
    # For these verdicts, only the findings that agree with them are reasons.
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
    return "according to published numbers" if printed and fails else ""
