"""Planned contrasts: two variants compared directly, as a family of their own."""

import pytest
from scipy import stats

from qkvary.studies.results.analysis import summarise
from tests.studies.made_up import by_variant, make_records, make_setting, make_study

QKV = [0.91, 0.95, 0.90, 0.97, 0.93]
SINGLE = [0.41, 0.56, 0.43, 0.50, 0.47]
IDENTITY = [0.52, 0.65, 0.55, 0.60, 0.58]
NEAR = [0.43, 0.54, 0.44, 0.49, 0.46]
VALUES = {"QKV": QKV, "Q=K=V": SINGLE, "I-K=V": IDENTITY, "(Q=K=V)+": NEAR}


def test_a_contrast_is_the_paired_interval_corrected_over_contrasts_and_tables() -> None:
    study = make_study(
        make_setting("reverse"),
        make_setting("sort", "sort", 11),
        variants=tuple(VALUES),
        contrasts=(("I-K=V", "q=k=v"), ("(Q=K=V)+", "Q=K=V")),
    )
    summary = summarise(study, make_records(study, by_variant({**VALUES})))
    first, second = summary.contrasts
    assert (first.variant, first.reference) == ("I-K=V", "Q=K=V")
    assert [row.table for row in first.rows] == ["average of reverse, sort", "reverse", "sort"]
    assert any("correction for 6 comparisons" in one for one in summary.method.sentences[3:])
    interval = stats.ttest_rel(IDENTITY, SINGLE).confidence_interval(1 - 0.05 / 6)
    for row in first.rows:
        gap = row.difference
        assert (gap.baseline, gap.comparisons, gap.pairs) == (
            "Q=K=V", 6, 10 if row.kind == "average" else 5,
        )  # fmt: skip
        assert gap.mean == pytest.approx(sum(IDENTITY) / 5 - sum(SINGLE) / 5)
        assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high))
        assert gap.verdict == "better"
        assert row.sentence == f"I-K=V against Q=K=V: {gap.sentence}"
        assert row.sentence.startswith("I-K=V against Q=K=V: supported: higher by 0.106 [")
    assert {row.difference.verdict for row in second.rows} == {"not distinguished"}


def test_a_contrast_with_the_baseline_agrees_with_the_tables() -> None:
    study = make_study(variants=("QKV", "Q=K=V"), contrasts=(("Q=K=V", "QKV"),))
    summary = summarise(study, make_records(study, by_variant({**VALUES})))
    (row,) = summary.contrasts[0].rows
    assert row.difference == summary.table("reverse").row("Q=K=V").difference
