"""Which costs the short answer calls none, undecided or unknown: a share of what was learnt."""

import re
from dataclasses import replace

import pytest

from qkvary.studies.results.headline import write_headline
from tests.studies.results.test_headline import study_of


def test_a_cost_is_none_only_if_the_interval_excludes_two_hundredths_of_the_baseline() -> None:
    sizes = re.compile(r"\d+\.\d+")
    for level in (2.2, 1.0, 0.5):
        summary = study_of({"QKV": level, "MQA": level}, variants=("QKV", "MQA"))
        gap = summary.table("reverse").row("MQA").difference
        assert gap is not None
        assert gap.low is not None
        assert gap.high is not None
        (said,) = summary.headline
        if gap.high < 0.02 * level:
            assert (
                said
                == f"Sharing heads has no measurable cost (at most {sizes.findall(said)[0]} nats)."
            )
        else:
            better, worse = sizes.findall(said)
            assert (
                said == f"Not decided: sharing heads (from {better} nats better to {worse} worse)."
            )
            assert -gap.low <= float(better) < -1.1 * gap.low
            assert gap.high <= float(worse) < 1.1 * gap.high
        assert ("measurable" in said) == (level != 0.5)


@pytest.mark.parametrize(("metric", "guess", "sign"), [("accuracy", 0.1, 1), ("loss", 9.21, -1)])
def test_the_margin_is_a_share_of_what_was_learnt(metric: str, guess: float, sign: int) -> None:
    for learnt, begins in ((0.58, "Not decided: sharing heads (from "), (0.8, "Sharing heads h")):
        level = guess + sign * learnt
        summary = study_of(
            {"QKV": level, "MQA": level}, metric=f"test_{metric}", variants=("QKV", "MQA")
        )
        gap = summary.table("reverse").row("MQA").difference
        assert gap is not None
        assert gap.low is not None
        assert gap.high is not None
        assert 0.02 * 0.58 < max(-gap.low, gap.high) < 0.02 * min(0.68, 0.8)
        headline = write_headline(summary.tables, summary.contrasts, summary.baseline)
        assert headline.sentences[0].startswith(begins)


def test_untrained_language_models_are_not_called_equal() -> None:
    """Four steps of training: losses 5.28 and 5.26, where a guess has ln 257 = 5.55."""
    levels = {"QKV": 5.28, "Q-K=V": 5.26}
    summary = study_of(levels, vocabulary=257, variants=tuple(levels))
    assert summary.headline == (
        "Nothing was learnt on reverse: no variant does visibly better than guessing (loss 5.55).",
    )
    headline = write_headline(summary.tables, summary.contrasts, summary.baseline)
    assert not any("measurable" in sentence for sentence in headline.sentences)


def test_an_interval_as_large_as_what_was_learnt_says_nothing() -> None:
    levels = {"QKV": 0.111, "MQA": 0.111}
    summary = study_of(levels, metric="test_accuracy", variants=tuple(levels))
    # The short answer says only that nothing was learnt.
    headline = write_headline(summary.tables, summary.contrasts, summary.baseline)
    assert headline.sentences == ("These runs are too few to say anything about sharing heads.",)


def test_of_nothing_no_share_is_too_large() -> None:
    levels = {"QKV": 0.0, "MQA": 0.0}
    summary = study_of(levels, metric="test_accuracy", variants=tuple(levels))
    (table,) = summary.tables
    rows = tuple(replace(row, mean=0.0) if row.variant == "QKV" else row for row in table.rows)
    said = write_headline((replace(table, rows=rows),), summary.contrasts, summary.baseline)
    assert said.sentences[0].startswith("Not decided: sharing heads (from ")
    assert summary.headline[0].startswith("Nothing was learnt")


def test_every_variant_is_named_or_counted() -> None:
    """Five variants that are not decided, two of them with several changes."""
    labels = ("QKV", "Q-K=V", "Q=K-V", "(Q=K-V)+", "Q=K=V", "(Q=K=V)+")
    levels = {label: 0.5 + 0.001 * (label != "QKV") for label in labels}
    (said,) = study_of(levels, metric="test_accuracy", variants=labels).headline
    assert said.startswith("Not decided: ")
    assert said.count(" better to ") == 5
    assert "Q=K with the position term + (" in said
    assert "Q=K=V with the position term + (" in said
