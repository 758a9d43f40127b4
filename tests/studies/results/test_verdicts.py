"""The sentences of verdicts."""

import pytest

from qkvary.studies.results.statistics import Estimate, paired_t
from qkvary.studies.results.verdicts import DifferenceWording, judge

ACCURACY = DifferenceWording(higher_is_better=True)
LOSS = DifferenceWording(higher_is_better=False)


def estimate(mean: float, half: float) -> Estimate:
    return Estimate(
        units=5,
        mean=mean,
        std=half,
        low=mean - half,
        high=mean + half,
        confidence=0.95,
        p_value=0.01,
        undefined=None,
    )


@pytest.mark.parametrize(
    ("wording", "mean", "verdict", "sentence"),
    [
        (ACCURACY, -0.12, "worse", "supported: lower by 0.120 [0.050, 0.190]"),
        (ACCURACY, 0.12, "better", "supported: higher by 0.120 [0.050, 0.190]"),
        (LOSS, -0.12, "better", "supported: lower by 0.120 [0.050, 0.190]"),
        (LOSS, 0.12, "worse", "supported: higher by 0.120 [0.050, 0.190]"),
    ],
)
def test_a_supported_difference_has_a_direction_and_a_judgement(
    wording: DifferenceWording, mean: float, verdict: str, sentence: str
) -> None:
    result = judge(estimate(mean, 0.07), wording, detectable=None, pairs=5, pairs_planned=5)
    assert result == (verdict, sentence)


def test_an_interval_that_touches_zero_supports_nothing() -> None:
    verdict, _ = judge(estimate(0.5, 0.5), ACCURACY, detectable=None, pairs=5, pairs_planned=5)
    assert verdict == "not distinguished"


@pytest.mark.parametrize(
    ("differences", "begins"),
    [
        ([], "not compared: none of 5 pairs of runs has finished"),
        ([-0.2], "no interval: lower by 0.200 in the only pair, and one"),
        ([0.2] * 5, "no interval: higher by 0.200 in all 5 pairs, so"),
        ([0.0] * 5, "no interval: the same in all 5 pairs, so"),
    ],
)
def test_without_an_interval_nothing_is_claimed(differences: list[float], begins: str) -> None:
    verdict, sentence = judge(
        paired_t(differences), ACCURACY, detectable=None, pairs=len(differences), pairs_planned=5
    )
    assert verdict == "no interval"
    assert sentence.startswith(begins)
