"""The answer in sentences, and what limits it."""

from collections.abc import Sequence

from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import Summary
from tests.studies.made_up import Outcome, by_variant, make_records, make_study

QKV = [0.91, 0.95, 0.90, 0.97, 0.93]
LOW = [0.81, 0.86, 0.83, 0.85, 0.80]


def summary_of(**values: Sequence[Outcome]) -> Summary:
    labels = {"shared": "Q-K=V", "single": "Q=K=V", "heads": "MQA"}
    outcomes = {"QKV": QKV, **{labels[name]: list(value) for name, value in values.items()}}
    study = make_study(variants=tuple(outcomes))
    return summarise(study, make_records(study, by_variant(outcomes)))


def test_failed_diverged_and_missing_runs_are_the_first_caveat() -> None:
    summary = summary_of(shared=["failed", "diverged", None, 0.9, 0.8])
    assert summary.caveats[0] == (
        "7 of 10 runs finished (1 failed, 1 diverged, 1 missing); "
        "means and differences are over those that did."
    )
    assert ", from 2 of 5 pairs" in summary.tables[0].row("Q-K=V").difference.sentence  # type: ignore[union-attr]
    problems = [run for run in summary.runs if run.state in ("failed", "diverged")]
    assert [run.message for run in problems] == ["the run failed", "the run diverged"]


def test_one_seed_has_no_interval_and_no_verdict() -> None:
    study = make_study(seeds=(1,))
    summary = summarise(study, make_records(study, by_variant({"QKV": QKV, "Q-K=V": LOW})))
    difference = summary.tables[0].row("Q-K=V").difference
    assert difference is not None
    assert (difference.verdict, difference.low, difference.p_value) == ("no interval", None, None)
    assert difference.sentence == (
        "no interval: lower by 0.100 in a single pair, which says nothing about its spread"
    )
