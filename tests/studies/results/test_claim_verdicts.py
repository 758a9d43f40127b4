"""Verdicts on claims follow from figures and their intervals alone."""

import dataclasses
from collections.abc import Sequence

import pytest

from qkvary.literature.claim import (
    ByComparison,
    ByFigure,
    ByStudy,
    ByTest,
    Claim,
    ClaimedRange,
    ClaimKind,
    Judge,
    document_names,
    load_document,
)
from qkvary.studies.catalog import study_names
from qkvary.studies.results.claim_verdicts import (
    OWN_FIGURES,
    SCRIPTS,
    ClaimVerdict,
    in_range,
    judge_claim,
)
from qkvary.studies.results.kept_figures import KeptFigure, find_packaged

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
    parameters=(1_600_000, 1_700_000),
)
EQUAL = ByFigure(table="three-projections-table-7", row="Q-K=V", column="reduction")
WRONG = ByFigure(table="three-projections-text", row="cache reduction of Q-GQA-g", column="value")
UNITS = ByFigure(table="three-projections-table-7", row="QKV", column="at_32k")
ROUNDED = ByFigure(table="three-projections-table-4", row="Q-MQA", column="change")
MEASURED = ByFigure(table="three-projections-table-4", row="QKV", column="train_loss")
TEST = ByTest(node="tests/a.py::test_b", says="It is so.")
OPPOSITE = dataclasses.replace(TEST, says="It is not so.", shows="opposite")


def claim(judges: Sequence[Judge], kind: ClaimKind = "measured", *, some: bool = False) -> Claim:
    return Claim(
        name="made-up-1",
        document="made-up",
        place="abstract",
        text="So it is.",
        kind=kind,
        judges=tuple(judges),
        some=some,
        note="",
        needs="",
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
    judges: Sequence[Judge], kind: ClaimKind = "measured", *, some: bool = False
) -> tuple[ClaimVerdict, str]:
    found = judge_claim(claim(judges, kind, some=some), lambda judge: KEPT.get(judge.key))
    return found.verdict, found.condition


@pytest.mark.parametrize(
    ("low", "high", "above", "below", "verdict"),
    [
        (-0.01, 0.01, None, 0.02, "holds"),
        (-0.01, 0.02, None, 0.02, "holds"),
        (-0.01, 0.021, None, 0.02, "not distinguished"),
        (0.021, 0.03, None, 0.02, "does not hold"),
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
        ([HOLDS, FAILS], "holds with a condition", "for A, not for B"),
        ([HOLDS, OPEN], "holds with a condition", "for A, not distinguished for C"),
    ],
)
def test_findings_that_differ_are_a_condition(
    judges: list[tuple[ByStudy, KeptFigure]], verdict: str, condition: str
) -> None:
    names = {"A": "first", "B": "second", "C": "third"}
    for letter, table in names.items():
        said = f"Q-K=V (made-up: {table})"
        condition = condition.replace(f"for {letter}", f"for {said}")
    assert verdict_of([judge for judge, _ in judges]) == (verdict, condition)


def test_sometimes_fails_only_if_all_fail() -> None:
    judges = [FAILS[0], OPEN[0]]
    assert verdict_of(judges)[0] == "does not hold"
    assert verdict_of(judges, some=True)[0] == "not distinguished"
    assert verdict_of([FAILS[0]], some=True)[0] == "does not hold"


@pytest.mark.parametrize(
    ("figure", "verdict", "condition"),
    [
        (EQUAL, "holds", ""),
        (WRONG, "does not hold", ""),
        (UNITS, "holds with a condition", "with 32,000 tokens"),
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


def test_figures_that_agree_do_not_show_what_was_measured() -> None:
    assert verdict_of([EQUAL]) == ("holds with a condition", OWN_FIGURES)
    assert verdict_of([WRONG]) == ("does not hold", "")
    # A measurement counts and agreeing figures do not; figures that contradict do.
    assert verdict_of([EQUAL, FAILS[0]])[0] == "does not hold"
    assert verdict_of([EQUAL, OPEN[0]])[0] == "not distinguished"
    assert verdict_of([WRONG, HOLDS[0]])[0] == "holds with a condition"
    assert verdict_of([MEASURED, HOLDS[0]])[0] == "holds"


def test_printed_figures_are_compared_within_their_rounding() -> None:
    first, second = (
        ByFigure(table="three-projections-table-4", row=row, column="validation_perplexity")
        for row in ("MQA", "Q-K=V")
    )

    def verdict(below: float) -> ClaimVerdict:
        claimed = ClaimedRange(below=below)
        judge = ByComparison(first=first, second=second, claimed=claimed)
        return verdict_of([judge], "recommendation")[0]

    # 5.19 against 5.27, each to 0.005.
    assert [verdict(below) for below in (0, -0.07, -0.08, -0.1)] == [
        *("holds", "holds", "not distinguished", "does not hold"),
    ]
    alone = ByComparison(first=first, second=None, claimed=ClaimedRange(above=5.2))
    assert verdict_of([alone], "arithmetic")[0] == "does not hold"


def test_a_test_shows_the_claim_or_its_opposite() -> None:
    assert verdict_of([TEST]) == ("holds", "")
    assert verdict_of([OPPOSITE]) == ("does not hold", "")
    there = dataclasses.replace(TEST, condition="without norms")
    assert verdict_of([there]) == ("holds with a condition", "without norms")
    found, condition = verdict_of([there, OPPOSITE])
    assert found == "holds with a condition"
    assert condition == "for “It is so”, not for “It is not so”; without norms"


def test_what_is_not_there_is_not_tested() -> None:
    assert verdict_of([STUDY]) == ("not tested here", "")
    assert verdict_of([]) == ("not tested here", "")
    judge, figure = study(None, None)
    found = judge_claim(claim([judge]), lambda _: figure)
    assert found.verdict == "not tested here"
    assert found.findings[0].figure == "Q-K=V against QKV: 0.000 nats, without an interval"


def test_the_scale_is_part_of_a_verdict() -> None:
    found = judge_claim(claim([HOLDS[0]]), lambda _: HOLDS[1])
    assert found.scale == "in networks of 1.6M to 1.7M parameters (made-up: 5 pairs)"
    same = dataclasses.replace(HOLDS[1], parameters=(110_000, 110_000), paired=False)
    assert judge_claim(claim([HOLDS[0]]), lambda _: same).scale.endswith(
        "of 110k parameters (made-up: 5 runs)"
    )
    bare = dataclasses.replace(HOLDS[1], parameters=None)
    assert judge_claim(claim([HOLDS[0]]), lambda _: bare).scale == "in made-up: 5 pairs"
    assert judge_claim(claim([EQUAL])).scale == ""


def test_the_scale_is_that_of_the_reasons() -> None:
    small = dataclasses.replace(FAILS[1], parameters=(7_000, 7_000))
    kept = {FAILS[0].key: small, OPEN[0].key: OPEN[1]}
    found = judge_claim(claim([FAILS[0], OPEN[0]]), lambda judge: kept.get(judge.key))
    assert found.scale == "in networks of 7k parameters (made-up: 5 pairs)"
    found = judge_claim(claim([WRONG, OPEN[0]]), lambda judge: kept.get(judge.key))
    assert (found.verdict, found.scale) == ("does not hold", "by the document's own figures")
    assert judge_claim(claim([WRONG], "arithmetic")).scale == ""


def test_a_figure_stands_with_its_interval_and_what_would_have_been_seen() -> None:
    (finding,) = judge_claim(claim([OPEN[0]]), lambda _: OPEN[1]).findings
    assert finding.figure == (
        "Q-K=V against QKV: 0.000 [−0.010, 0.050] nats; a difference of 0.013 would have been seen"
    )
    assert (finding.record, finding.check) == (
        "studies/made-up/README.md",
        "qkvary study made-up",
    )
    (finding,) = judge_claim(claim([HOLDS[0]]), lambda _: HOLDS[1]).findings
    assert finding.figure == "Q-K=V against QKV: 0.000 [−0.010, 0.010] nats"
    (finding,) = judge_claim(claim([UNITS])).findings
    assert finding.figure == "printed 2.62 GB, recomputed 2.6844 (GB)"
    assert finding.check == "qkvary published three-projections-table-7"


def test_every_claim_has_the_figures_it_asks_for_and_says_what_is_missing() -> None:
    studies = set(study_names()) | set(SCRIPTS)
    for name in document_names():
        for one in load_document(name).claims:
            found = judge_claim(one)
            assert (found.verdict == "not tested here") == bool(one.needs), one.name
            assert (found.verdict == "holds with a condition") == bool(found.condition), one.name
            for judge in one.judges:
                if isinstance(judge, ByStudy):
                    kept = find_packaged(judge)
                    assert kept is not None, judge.key
                    assert judge.study in studies
            for finding in found.findings:
                if finding.verdict == "not distinguished" and finding.study:
                    assert "would have been seen" in finding.figure, one.name
