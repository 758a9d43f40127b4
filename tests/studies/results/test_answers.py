"""The answer in sentences, and what limits it."""

import dataclasses
from collections.abc import Sequence

import pytest

from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import Summary
from tests.studies.made_up import Outcome, by_variant, make_records, make_setting, make_study

QKV = [0.91, 0.95, 0.90, 0.97, 0.93]
LOW = [0.81, 0.86, 0.83, 0.85, 0.80]
NEAR = [0.92, 0.94, 0.91, 0.95, 0.94]


def summary_of(**values: Sequence[Outcome]) -> Summary:
    labels = {"shared": "Q-K=V", "single": "Q=K=V", "heads": "MQA"}
    outcomes = {"QKV": QKV, **{labels[name]: list(value) for name, value in values.items()}}
    study = make_study(variants=tuple(outcomes))
    return summarise(study, make_records(study, by_variant(outcomes)))


def test_the_first_sentence_counts_and_the_next_one_says_which() -> None:
    summary = summary_of(shared=NEAR, single=LOW)
    assert summary.answers[0] == (
        "Of 2 differences to QKV, the data support 1 (1 worse, 0 better); 1 not distinguished."
    )
    assert summary.answers[1].startswith(
        "reverse (test accuracy): worse than QKV: Q=K=V (lower by 0.102 ["
    )
    assert "; not distinguished from QKV: Q-K=V (a difference of 0.0" in summary.answers[1]


def test_variants_that_are_the_same_in_every_pair_are_not_called_undecided() -> None:
    summary = summary_of(shared=QKV, single=[x - 0.25 for x in QKV])
    assert summary.answers[0] == (
        "Of 2 differences to QKV, the data support 0 (0 worse, 0 better); 2 without an interval."
    )
    assert "the same as QKV in every pair: Q-K=V" in summary.answers[1]
    assert "without an interval: Q=K=V" in summary.answers[1]


def test_before_the_first_pair_there_is_no_answer() -> None:
    study = make_study()
    summary = summarise(study, [])
    assert summary.answers == (
        "No pair of runs has finished, so nothing can be said about QKV yet.",
    )
    assert summary.caveats[0] == (
        "0 of 10 runs finished (10 missing); means and differences are over those that did."
    )


def test_a_study_of_the_baseline_alone_compares_nothing() -> None:
    study = make_study(variants=("QKV",))
    summary = summarise(study, make_records(study, lambda _: 0.9))
    assert summary.answers == (
        "QKV has a test accuracy of 0.9000 (reverse).",
        "There is nothing to compare: QKV is the only variant.",
    )


def test_a_table_without_the_baseline_says_nothing_about_it() -> None:
    alone = dataclasses.replace(make_setting("more heads"), table="alone", variants=("MQA",))
    study = make_study(make_setting("usual"), alone, variants=("QKV", "MQA"))
    summary = summarise(study, make_records(study, lambda _: 0.9))
    assert {table.name for table in summary.tables} == {"reverse", "alone"}
    assert not [text for text in summary.answers if "alone" in text]


def test_failed_diverged_and_missing_runs_are_the_first_caveat() -> None:
    summary = summary_of(shared=["failed", "diverged", None, 0.9, 0.8])
    assert summary.caveats[0] == (
        "7 of 10 runs finished (1 failed, 1 diverged, 1 missing); "
        "means and differences are over those that did."
    )
    assert ", from 2 of 5 pairs" in summary.tables[0].row("Q-K=V").difference.sentence  # type: ignore[union-attr]
    problems = [run for run in summary.runs if run.state in ("failed", "diverged")]
    assert [run.message for run in problems] == ["the run failed", "the run diverged"]


@pytest.mark.parametrize(
    ("seeds", "caveat"), [((1,), "There is one seed"), ((1, 2), "There are two seeds")]
)
def test_few_seeds_are_named(seeds: tuple[int, ...], caveat: str) -> None:
    study = make_study(seeds=seeds)
    outcomes = by_variant({"QKV": QKV, "Q-K=V": LOW})
    summary = summarise(study, make_records(study, outcomes))
    assert any(text.startswith(caveat) for text in summary.caveats)


def test_one_seed_has_no_interval_and_no_verdict() -> None:
    study = make_study(seeds=(1,))
    summary = summarise(study, make_records(study, by_variant({"QKV": QKV, "Q-K=V": LOW})))
    difference = summary.tables[0].row("Q-K=V").difference
    assert difference is not None
    assert (difference.verdict, difference.low, difference.p_value) == ("no interval", None, None)
    assert difference.sentence == (
        "no interval: lower by 0.100 in a single pair, which says nothing about its spread"
    )


def test_settings_as_units_are_a_caveat() -> None:
    settings = [make_setting(f"s{length}", length=length) for length in (5, 7, 11, 13)]
    study = make_study(*settings, seeds=(1, 2))
    summary = summarise(
        study,
        make_records(
            study,
            lambda c: 0.9 if c.variant == "QKV" else 0.9 - 0.01 * len(c.setting) * c.seed,
        ),
    )
    assert any("the settings are the units" in text for text in summary.caveats)


def test_learning_rates_are_said_to_be_equal_or_chosen() -> None:
    equal = summary_of(shared=LOW)
    assert "All variants use the same hyper-parameters in a setting." in equal.caveats
    study = make_study(learning_rates=(1e-3, 1e-2))
    outcomes = by_variant({"QKV": QKV, "Q-K=V": LOW})
    summary = summarise(study, make_records(study, outcomes))
    text = next(text for text in summary.caveats if "learning rate" in text)
    assert "chosen by the mean of the task's own validation metric, whichever score" in text
    assert text.endswith("In 2 of 2 choices it is the smallest or largest of those tried.")


def test_supported_steps_to_solve_have_a_sentence() -> None:
    study = make_study()
    records = make_records(study, by_variant({"QKV": QKV, "Q-K=V": NEAR}))
    steps = {"QKV": [400, 410, 420, 430, 440], "Q-K=V": [100, 120, 125, 115, 105]}
    for record in records:
        record.metrics["steps_to_solve"] = steps[record.variant][record.seed - 1]  # type: ignore[index]
    answers = summarise(study, records).answers
    assert answers[-1].startswith(
        "reverse, steps to solve against QKV: Q-K=V sooner by 307 steps ["
    )
