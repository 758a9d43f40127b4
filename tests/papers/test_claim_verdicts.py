"""Verdicts on claims follow from figures and their intervals alone."""

import dataclasses
import math
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
from qkvary.papers.recomputation import recompute
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
NEITHER = dataclasses.replace(TEST, node="tests/a.py::test_c", shows="neither")


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


HOLDS, FAILS, OPEN = (dataclasses.replace(STUDY, table=name) for name in ("A", "B", "C"))
KEPT = {
    judge.key: dataclasses.replace(FIGURE, low=low, high=high)
    for judge, low, high in ((HOLDS, -0.01, 0.01), (FAILS, 0.03, 0.05), (OPEN, -0.01, 0.05))
}


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


def bounded(table: str, row: str, column: str, below: float) -> Judge:
    """A published number that is claimed to be below a bound."""
    figure = ByFigure(table=table, row=row, column=column)
    return ByComparison(first=figure, second=None, claimed=ClaimedRange(below=below))


AGREES = bounded("three-projections-table-4", "Q-K=V", "change", 5)
PER_TOKEN = ("three-projections-table-7", "MQA", "per_token")
WITHOUT = dataclasses.replace(TEST, condition="without norms")
NOT_WITHOUT = dataclasses.replace(OPPOSITE, condition="without norms")
NOT_WITH = dataclasses.replace(OPPOSITE, condition="with norms")
BOTH = "One test shows that it holds. One test shows the opposite"
FIRST, SECOND, THIRD = (f"Q-K=V (made-up: {name})" for name in "ABC")


@pytest.mark.parametrize(
    ("judges", "verdict", "condition"),
    [
        ([HOLDS], "holds", ""),
        ([FAILS], "does not hold", ""),
        ([OPEN], "not distinguished", ""),
        ([FAILS, OPEN], "does not hold", ""),
        (
            [HOLDS, FAILS],
            "holds with a condition",
            f"It holds for {FIRST}. It does not hold for {SECOND}.",
        ),
        (
            [HOLDS, OPEN],
            "holds with a condition",
            f"It holds for {FIRST}. It is not distinguished for {THIRD}.",
        ),
        # What decides nothing leaves a claim open and refutes none.
        ([NEITHER], "not distinguished", ""),
        ([dataclasses.replace(FAILS, shows="neither")], "not distinguished", ""),
        ([dataclasses.replace(HOLDS, shows="neither")], "not distinguished", ""),
        (
            [TEST, NEITHER],
            "holds with a condition",
            "One test shows that it holds. One test shows neither.",
        ),
        # What is exact refutes whatever agrees.
        ([WRONG, HOLDS], "does not hold", None),
        ([TEST, OPPOSITE], "does not hold", None),
        ([TEST], "holds", ""),
        ([OPPOSITE], "does not hold", ""),
        ([WITHOUT], "holds with a condition", "It holds without norms."),
        ([NOT_WITH], "does not hold", "It does not hold with norms."),
        (
            [WITHOUT, NOT_WITH],
            "holds with a condition",
            f"{BOTH}. It holds without norms. It does not hold with norms.",
        ),
        # A condition of both decides nothing, and is stated once.
        (
            [WITHOUT, NOT_WITHOUT],
            "holds with a condition",
            f"{BOTH}. It holds without norms.",
        ),
    ],
)
def test_findings_that_differ_are_a_condition(
    judges: list[Judge], verdict: str, condition: str | None
) -> None:
    found, said = verdict_of(judges)
    assert found == verdict
    assert condition is None or said == condition


@pytest.mark.parametrize(
    ("judges", "verdict", "begins"),
    [
        ([EQUAL], "holds", ""),
        ([WRONG], "does not hold", ""),
        ([UNITS], "holds with a condition", "It holds with 32,000 tokens"),
        ([ROUNDED], "holds", ""),
        ([MEASURED], "not tested here", ""),
        (
            [EQUAL, WRONG],
            "does not hold",
            "It does not hold for cache reduction of Q-GQA-g. It holds for Q-K=V",
        ),
        # 5 KB, to half a KB.
        ([bounded(*PER_TOKEN, below=4)], "does not hold", ""),
        ([bounded(*PER_TOKEN, below=6)], "holds", ""),
    ],
)
def test_recomputed_and_printed_figures_judge_arithmetic(
    judges: list[Judge], verdict: str, begins: str
) -> None:
    found, said = verdict_of(judges, "arithmetic")
    assert found == verdict
    assert said.startswith(begins)
    assert bool(said) == bool(begins)


def test_one_case_is_enough_for_some_and_refutes_every() -> None:
    assert verdict_of([TEST, OPPOSITE], quantifier="some")[0] == "holds with a condition"
    assert verdict_of([TEST, NOT_WITHOUT], quantifier="every") == (
        "does not hold",
        (
            "One test shows the opposite. One test shows that it holds. It does not hold without "
            "norms."
        ),
    )


@pytest.mark.parametrize(
    ("judges", "parameters", "verdict"),
    [
        # The networks of the studies have 1.6M to 1.7M parameters.
        ([FAILS], 17_000_000, "does not hold"),
        ([FAILS], 17_000_001, "not distinguished"),
        ([HOLDS], 17_000_001, "not distinguished"),
        ([FAILS, AGREES], 16_000_000, "does not hold"),
        ([FAILS, AGREES], 300_000_000, "holds with a condition"),
        ([FAILS, TEST], 300_000_000, "holds with a condition"),
        ([WRONG, HOLDS], 300_000_000, "does not hold"),
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
    assert ("at most 1.7M parameters cannot settle this claim" in found.condition) == is_small


def test_a_printed_figure_stands_where_the_studies_are_small() -> None:
    asked = dataclasses.replace(claim([FAILS, AGREES], quantifier="every"), parameters=10**9)
    assert judge_claim(asked, lambda judge: KEPT.get(judge.key)).verdict == "holds with a condition"
    other = dataclasses.replace(asked, judges=(FAILS, TEST))
    assert judge_claim(other, lambda judge: KEPT.get(judge.key)).verdict == "not distinguished"
    assert not judge_claim(dataclasses.replace(claim([WRONG]), untested="speed")).condition


def small_and_large(
    low: float, high: float, *, large: str = "average of sort, swap", most: int = 140_000
) -> tuple[ClaimVerdict, ...]:
    """The verdict on a claim, and those of a study that contradicts it and of another study."""
    small = dataclasses.replace(STUDY, table="average of reverse, swap")
    other = dataclasses.replace(STUDY, study="published", table=large)
    figures = {
        small.key: dataclasses.replace(FIGURE, low=0.3, high=0.4, parameters=(15_000, 19_000)),
        other.key: dataclasses.replace(FIGURE, low=low, high=high, parameters=(9_000, most)),
    }
    found = judge_claim(claim([small, other]), lambda judge: figures.get(judge.key))
    return (found.verdict, *(one.verdict for one in found.findings))


def test_a_small_study_does_not_contradict_a_larger_one_of_the_same_task() -> None:
    fails, open_ = "does not hold", "not distinguished"
    assert small_and_large(-0.1, 0.5) == (open_, open_, open_)
    assert small_and_large(-0.1, 0.01) == ("holds with a condition", open_, "holds")
    assert small_and_large(0.1, 0.2) == (fails, fails, fails)
    assert small_and_large(-0.1, 0.5, most=18_000) == (fails, fails, open_)
    assert small_and_large(-0.1, 0.5, large="sort") == (fails, fails, open_)


def test_a_printed_comparison_that_contradicts_counts_beside_a_study() -> None:
    judges = [HOLDS, printed("Q-K=V", "MQA", 0)]
    verdict, condition = verdict_of(judges)
    assert verdict == "holds with a condition"
    assert "It does not hold for Q-K=V against MQA (validation perplexity)." in condition
    assert verdict_of([HOLDS, printed("MQA", "Q-K=V", 0)]) == ("holds", "")
    assert verdict_of(judges, quantifier="every")[0] == "does not hold"


def test_a_figure_of_small_networks_keeps_its_table_and_condition() -> None:
    judge = dataclasses.replace(HOLDS, condition="in sets whose odd image is always last")
    asked = dataclasses.replace(claim([judge]), parameters=10**9)
    (finding,) = judge_claim(asked, lambda one: KEPT.get(one.key)).findings
    assert finding.figure.startswith("Q-K=V against QKV (A): ")
    assert finding.figure.endswith(", in sets whose odd image is always last")


def test_a_figure_from_the_code_is_not_called_printed() -> None:
    figure = ByFigure(
        table="query-identity-text", row="divisor of scores with an identity query", column="value"
    )
    (finding,) = judge_claim(claim([figure])).findings
    assert finding.figure == "in the code 2, recomputed 1.8"
    decays = [one for one in recompute("query-identity-table-2") if one.figure.in_code]
    assert {one.figure.column for one in decays} == {"weight_decay"}


def printed(row: str, other: str, below: float, column: str = "validation_perplexity") -> Judge:
    first, second = (
        ByFigure(table="three-projections-table-4", row=one, column=column) for one in (row, other)
    )
    return ByComparison(first=first, second=second, claimed=ClaimedRange(below=below))


def test_a_column_of_one_setting_names_the_settings_of_another() -> None:
    claims = {one.name: one for one in load_document("three-projections").claims}
    error = "an assumed 0.0008, two standard errors over settings: "
    for name, said in (
        ("63", error),
        ("66", "an assumed spread of 0.016 between settings of CIFAR-100: "),
    ):
        found = judge_claim(claims[f"three-projections-{name}"], find_packaged).findings
        assert any(said in one.figure for one in found), name


def test_printed_figures_of_one_network_are_compared_within_a_spread() -> None:
    # 5.19 against 5.27, each to 0.005, and 0.03 between runs: -0.12 to -0.04.
    found = [verdict_of([printed("MQA", "Q-K=V", below)])[0] for below in (0, -0.05, -0.11, -0.13)]
    assert found == [
        *("holds with a condition", "not distinguished", "not distinguished", "does not hold")
    ]
    (finding,) = judge_claim(claim([printed("MQA", "Q-K=V", 0)])).findings
    assert finding.condition == SEEDS
    # 5.15 against 5.19 reaches 0, and so decides nothing.
    assert verdict_of([printed("GQA-4", "MQA", 0)])[0] == "not distinguished"
    assert "(with rounding and an assumed spread of 0.03 between runs: " in finding.figure
    # Deviations between 24 configurations that are printed give two standard errors instead.
    cifar, other = (
        ByFigure(table="key-value-table-3", row=row, column="cifar100") for row in ("KV+Pos", "QKV")
    )
    judge = ByComparison(first=cifar, second=other, claimed=ClaimedRange(above=0))
    (finding,) = judge_claim(claim([judge])).findings
    assert finding.verdict == "not distinguished"
    error = 2 * 0.02 / math.sqrt(24)
    assert (finding.low, finding.high) == (
        pytest.approx(0.003 - 0.001 - error),
        pytest.approx(0.003 + 0.001 + error),
    )
    assert "(with rounding and 0.008, two standard errors over 24 settings: " in finding.figure
    for table, column in SPREADS:
        assert any(one.column == column for one in load_published(table).figures), table


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
            for judge, finding in zip(one.judges, found.findings, strict=True):
                if isinstance(judge, ByStudy) and judge.shows == "neither":
                    assert (finding.verdict, one.note != "") == ("not distinguished", True)
                    continue
                known = finding.detectable is not None or "pair" in finding.study
                if finding.verdict == "not distinguished" and known and not finding.is_small:
                    whys = ("could have detected a difference", "; larger networks (")
                    assert any(why in finding.figure for why in whys), one.name


def test_claims_that_say_the_same_have_one_verdict() -> None:
    claims = [one for name in document_names() for one in load_document(name).claims]
    judged = {one.name: judge_claim(one) for one in claims}
    repeated = [one for one in claims if one.same_as]
    assert repeated
    for one in repeated:
        first = judged[one.same_as]
        assert first.claim.same_as == "", one.name
        assert judged[one.name].verdict == first.verdict, one.name
