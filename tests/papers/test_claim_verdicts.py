"""Verdicts on claims follow from figures and their intervals alone."""

import dataclasses
from collections.abc import Sequence

import pytest

from qkvary.papers.catalog import document_names
from qkvary.papers.claim import (
    ByComparison,
    ByFigure,
    ByStudy,
    ByTest,
    Claim,
    ClaimedRange,
    ClaimKind,
    Judge,
    Quantifier,
    load_document,
)
from qkvary.papers.claim_verdicts import judge_claim
from qkvary.papers.findings import SCRIPTS, SEEDS, SPREADS, ClaimVerdict, in_range
from qkvary.papers.kept_figures import KeptFigure, find_packaged
from qkvary.papers.tables import load_published
from qkvary.studies.catalog import load_study

STUDY = ByStudy(
    study="made-up",
    table="tasks",
    variant="Q-K=V",
    reference="QKV",
    claimed=ClaimedRange(below=0.02),
    unit="nats",
)
FIGURE = KeptFigure(
    value=0.0,
    low=-0.01,
    high=0.01,
    detectable=0.013,
    runs=5,
    paired=True,
    folder="ours/made-up",
    parameters=(1_600_000, 1_700_000),
)
EQUAL = ByFigure(table="three-projections-table-7", row="Q-K=V", column="reduction")
WRONG = ByFigure(table="three-projections-text", row="cache reduction of Q-GQA-g", column="value")
UNITS = ByFigure(table="three-projections-table-7", row="QKV", column="at_32k")
ROUNDED = ByFigure(table="three-projections-table-4", row="Q-MQA", column="change")
MEASURED = ByFigure(table="three-projections-table-4", row="QKV", column="train_loss")
TEST = ByTest(node="tests/a.py::test_b", says="It is so.")
OPPOSITE = dataclasses.replace(TEST, says="It is not so.", shows="opposite")


def claim(
    judges: Sequence[Judge], kind: ClaimKind = "measured", *, quantifier: Quantifier = ""
) -> Claim:
    return Claim(
        name="made-up-1",
        place="abstract",
        text="So it is.",
        kind=kind,
        judges=tuple(judges),
        quantifier=quantifier,
        parameters=None,
        main=False,
        same_as="",
        note="",
        untested="",
        needs="",
        words="",
    )


def study(
    low: float | None, high: float | None, table: str = "tasks"
) -> tuple[ByStudy, KeptFigure]:
    judge = dataclasses.replace(STUDY, table=table)
    return judge, dataclasses.replace(FIGURE, low=low, high=high)


HOLDS = study(-0.01, 0.01, "first")
FAILS = study(0.03, 0.05, "second")
OPEN = study(-0.01, 0.05, "third")
KEPT = {judge.key: figure for judge, figure in (HOLDS, FAILS, OPEN)}


def verdict_of(
    judges: Sequence[Judge], kind: ClaimKind = "measured", *, quantifier: Quantifier = ""
) -> tuple[ClaimVerdict, str]:
    asked = claim(judges, kind, quantifier=quantifier)
    found = judge_claim(asked, lambda judge: KEPT.get(judge.key))
    return found.verdict, found.condition


@pytest.mark.parametrize(
    ("low", "high", "above", "below", "verdict"),
    [
        (-0.01, 0.01, None, 0.02, "holds"),
        (-0.01, 0.019, None, 0.02, "holds"),
        (-0.01, 0.021, None, 0.02, "not distinguished"),
        (0.021, 0.03, None, 0.02, "does not hold"),
        # An end at an end of the range decides nothing, whatever floating point makes of it.
        (-0.01, 0.02, None, 0.02, "not distinguished"),
        (0.02 + 1e-16, 0.03, None, 0.02, "not distinguished"),
        (-0.002, -1e-16, 0, None, "not distinguished"),
        (-1e-16, 0.002, 0, None, "not distinguished"),
        (1e-16, 0.002, 0, None, "not distinguished"),
        (0.01, 0.03, 0, None, "holds"),
        (-0.03, -0.01, 0, None, "does not hold"),
        (-0.01, 0.01, -0.02, 0.02, "holds"),
        (-0.03, 0.01, -0.02, 0.02, "not distinguished"),
    ],
)
def test_an_interval_lies_in_a_range_outside_or_across(
    low: float, high: float, above: float | None, below: float | None, verdict: str
) -> None:
    ends = {"above": above, "below": below}
    given = {name: float(end) for name, end in ends.items() if end is not None}
    assert in_range(low, high, ClaimedRange(**given)) == verdict


@pytest.mark.parametrize(
    ("judges", "verdict", "condition"),
    [
        ([HOLDS], "holds", ""),
        ([FAILS], "does not hold", ""),
        ([OPEN], "not distinguished", ""),
        ([FAILS, OPEN], "does not hold", ""),
        ([HOLDS, FAILS], "holds with a condition", "It holds for A. It does not hold for B."),
        ([HOLDS, OPEN], "holds with a condition", "It holds for A. It is not distinguished for C."),
    ],
)
def test_findings_that_differ_are_a_condition(
    judges: list[tuple[ByStudy, KeptFigure]], verdict: str, condition: str
) -> None:
    for letter, table in {"A": "first", "B": "second", "C": "third"}.items():
        condition = condition.replace(f"for {letter}", f"for Q-K=V (made-up: {table})")
    assert verdict_of([judge for judge, _ in judges]) == (verdict, condition)


AGREES = ByComparison(
    first=ByFigure(table="three-projections-table-4", row="Q-K=V", column="change"),
    second=None,
    claimed=ClaimedRange(below=5),
)


@pytest.mark.parametrize(
    ("judges", "parameters", "verdict"),
    [
        # The networks of the studies have 1.6M to 1.7M parameters.
        ([FAILS[0]], 17_000_000, "does not hold"),
        ([FAILS[0]], 17_000_001, "not distinguished"),
        ([HOLDS[0]], 17_000_001, "not distinguished"),
        ([FAILS[0], AGREES], 16_000_000, "does not hold"),
        ([FAILS[0], AGREES], 300_000_000, "holds with a condition"),
        ([FAILS[0], TEST], 300_000_000, "holds with a condition"),
        ([WRONG, HOLDS[0]], 300_000_000, "does not hold"),
    ],
)
@pytest.mark.parametrize("quantifier", ["", "some"])
def test_a_small_study_does_not_decide_about_large_networks(
    judges: Sequence[Judge], parameters: int, verdict: str, quantifier: Quantifier
) -> None:
    asked = dataclasses.replace(claim(judges, quantifier=quantifier), parameters=parameters)
    found = judge_claim(asked, lambda judge: KEPT.get(judge.key))
    assert found.verdict == verdict or (quantifier == "some" and judges[0] == WRONG)
    is_small = parameters > 17_000_000
    assert any(one.is_small for one in found.findings) == is_small
    assert ("at most 1.7M parameters do not decide it" in found.condition) == is_small


def test_a_printed_figure_stands_where_the_studies_are_small() -> None:
    asked = dataclasses.replace(claim([FAILS[0], AGREES], quantifier="every"), parameters=10**9)
    assert judge_claim(asked, lambda judge: KEPT.get(judge.key)).verdict == "holds with a condition"
    other = dataclasses.replace(asked, judges=(FAILS[0], TEST))
    assert judge_claim(other, lambda judge: KEPT.get(judge.key)).verdict == "not distinguished"


@pytest.mark.parametrize(
    ("figure", "verdict", "condition"),
    [
        (EQUAL, "holds", ""),
        (WRONG, "does not hold", ""),
        (UNITS, "holds with a condition", "It holds with 32,000 tokens"),
        (ROUNDED, "holds", ""),
        (MEASURED, "not tested here", ""),
    ],
)
def test_recomputed_figures_judge_arithmetic(
    figure: ByFigure, verdict: str, condition: str
) -> None:
    found, said = verdict_of([figure], "arithmetic")
    assert found == verdict
    assert said.startswith(condition)
    assert bool(said) == bool(condition)


def printed(row: str, other: str, below: float, column: str = "validation_perplexity") -> Judge:
    first, second = (
        ByFigure(table="three-projections-table-4", row=one, column=column) for one in (row, other)
    )
    return ByComparison(first=first, second=second, claimed=ClaimedRange(below=below))


BELOW, ABOVE = printed("MQA", "Q-K=V", 0), printed("Q-K=V", "MQA", 0)


def test_what_is_exact_refutes_whatever_agrees() -> None:
    found, condition = verdict_of([EQUAL, WRONG], "arithmetic")
    assert found == "does not hold"
    said = "It does not hold for cache reduction of Q-GQA-g. It holds for Q-K=V"
    assert condition.startswith(said)
    assert verdict_of([WRONG, HOLDS[0]])[0] == "does not hold"
    assert verdict_of([TEST, OPPOSITE])[0] == "does not hold"
    assert verdict_of([TEST, OPPOSITE], quantifier="some")[0] == "holds with a condition"
    there = dataclasses.replace(OPPOSITE, condition="without norms")
    assert verdict_of([TEST, there], quantifier="every") == (
        "does not hold",
        "One test shows the opposite. One test shows it. It does not hold without norms.",
    )


def test_printed_figures_are_compared_within_their_rounding() -> None:
    alone, many = (
        ByComparison(
            first=ByFigure(table="three-projections-table-7", row="MQA", column="per_token"),
            second=None,
            claimed=ClaimedRange(below=below),
        )
        for below in (4, 6)
    )
    # 5 KB, to half a KB.
    assert verdict_of([alone], "arithmetic")[0] == "does not hold"
    assert verdict_of([many], "arithmetic")[0] == "holds"


def test_printed_figures_of_one_network_are_compared_within_a_spread() -> None:
    # 5.19 against 5.27, each to 0.005, and 0.03 between runs: -0.12 to -0.04.
    found = [verdict_of([printed("MQA", "Q-K=V", below)])[0] for below in (0, -0.05, -0.11, -0.13)]
    assert found == [
        *("holds with a condition", "not distinguished", "not distinguished", "does not hold")
    ]
    (finding,) = judge_claim(claim([BELOW])).findings
    assert finding.condition == SEEDS
    # 5.15 against 5.19 reaches 0, and so decides nothing.
    assert verdict_of([printed("GQA-4", "MQA", 0)])[0] == "not distinguished"
    # A deviation that is printed counts instead of a spread.
    cifar, other = (
        ByFigure(table="key-value-table-3", row=row, column="cifar100") for row in ("KV+Pos", "QKV")
    )
    judge = ByComparison(first=cifar, second=other, claimed=ClaimedRange(above=0))
    (finding,) = judge_claim(claim([judge])).findings
    assert finding.verdict == "not distinguished"
    assert (finding.low, finding.high) == (
        pytest.approx(0.003 - 0.001 - 0.02),
        pytest.approx(0.003 + 0.001 + 0.02),
    )
    for table, column in SPREADS:
        assert any(one.column == column for one in load_published(table).figures), table


def test_a_test_shows_the_claim_or_its_opposite() -> None:
    assert verdict_of([TEST]) == ("holds", "")
    assert verdict_of([OPPOSITE]) == ("does not hold", "")
    there = dataclasses.replace(TEST, condition="without norms")
    assert verdict_of([there]) == ("holds with a condition", "It holds without norms.")
    against = dataclasses.replace(OPPOSITE, condition="with norms")
    assert verdict_of([against]) == ("does not hold", "It does not hold with norms.")
    found, condition = verdict_of([there, against])
    assert found == "holds with a condition"
    assert condition == (
        "One test shows it. One test shows the opposite. "
        "It holds without norms. It does not hold with norms."
    )
    # A condition of both decides nothing, and is stated once.
    both = dataclasses.replace(OPPOSITE, condition="without norms")
    assert verdict_of([there, both])[1].endswith("the opposite. It holds without norms.")


def test_every_claim_has_the_figures_it_asks_for_and_says_what_is_missing() -> None:
    for name in document_names():
        for one in load_document(name).claims:
            found = judge_claim(one)
            assert (found.verdict == "not tested here") == bool(found.needs), one.name
            assert found.needs == one.needs, one.name
            assert bool(found.condition) or found.verdict != "holds with a condition", one.name
            assert not found.condition or found.verdict != "holds", one.name
            for judge in one.judges:
                if isinstance(judge, ByStudy):
                    kept = find_packaged(judge)
                    assert kept is not None, judge.key
                    assert judge.study in SCRIPTS or load_study(judge.study).name == judge.study
            for finding in found.findings:
                known = finding.detectable is not None or "pair" in finding.study
                if finding.verdict == "not distinguished" and known and not finding.is_small:
                    assert "would have been seen" in finding.figure, one.name


def test_claims_that_say_the_same_have_one_verdict() -> None:
    claims = [one for name in document_names() for one in load_document(name).claims]
    judged = {one.name: judge_claim(one) for one in claims}
    repeated = [one for one in claims if one.same_as]
    assert repeated
    for one in repeated:
        first = judged[one.same_as]
        assert first.claim.same_as == "", one.name
        assert judged[one.name].verdict == first.verdict, one.name
