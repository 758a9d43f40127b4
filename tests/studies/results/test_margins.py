"""Which costs the short answer calls none, undecided or unknown: a share of what was learnt."""

import re

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
