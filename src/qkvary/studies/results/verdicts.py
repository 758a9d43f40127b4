"""Judges differences, and writes the sentences that state the verdicts. Never imports torch.

A verdict follows from the corrected interval alone. "Not distinguished" does not mean "equal": the
sentence states the smallest difference that the test would have detected.
"""

import math
from dataclasses import dataclass

from qkvary.studies.results.statistics import Estimate
from qkvary.studies.results.summary import Verdict
from qkvary.text.numbers import decimals_of, fixed, interval


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceWording:
    """The words that describe a difference in one quantity."""

    higher_is_better: bool
    more: str = "higher"
    less: str = "lower"
    unit: str = ""
    """Unit after the number, with a leading space."""
    limit: float | None = None
    """Largest possible difference; None if there is no limit."""


def is_share(metric: str) -> bool:
    """Return whether a metric is a share of all answers, from 0 to 1."""
    return metric.endswith("accuracy")


def judge(
    estimate: Estimate,
    wording: DifferenceWording,
    *,
    detectable: float | None,
    pairs: int,
    pairs_planned: int,
) -> tuple[Verdict, str]:
    """Return the verdict on a paired difference, and the sentence that states it."""
    short = "" if pairs == pairs_planned else f", from {pairs} of {pairs_planned} pairs"
    if estimate.mean is None and not pairs:
        return "no interval", f"not compared: none of {pairs_planned} pairs of runs has finished"
    if estimate.mean is None:
        return "no interval", (
            f"not compared: {pairs} of {pairs_planned} pairs finished, too few for a difference "
            "over all settings"
        )
    if estimate.low is None or estimate.high is None:
        return "no interval", _without_interval(estimate, wording) + short
    if estimate.low <= 0 <= estimate.high:
        return "not distinguished", _not_distinguished(estimate, wording, detectable) + short
    better = (estimate.mean > 0) == wording.higher_is_better
    sentence = f"supported: {_direction(estimate, wording)}{short}"
    return ("better" if better else "worse"), sentence


def _direction(estimate: Estimate, wording: DifferenceWording) -> str:
    """Write a difference with its direction: ``lower by 0.12 [0.05, 0.19]``."""
    mean, low, high = estimate.mean or 0.0, estimate.low or 0.0, estimate.high or 0.0
    decimals = decimals_of((high - low) / 2)
    near, far = (low, high) if mean > 0 else (-high, -low)
    size = f"{fixed(abs(mean), decimals)}{wording.unit}"
    return f"{_word(mean, wording)} by {size} {interval(near, far, decimals)}"


def _not_distinguished(
    estimate: Estimate, wording: DifferenceWording, detectable: float | None
) -> str:
    mean, low, high = estimate.mean or 0.0, estimate.low or 0.0, estimate.high or 0.0
    decimals = decimals_of((high - low) / 2)
    observed = f"{fixed(mean, decimals)}{wording.unit} {interval(low, high, decimals)}"
    if detectable is None:
        return f"not distinguished: {observed}"
    if wording.limit is not None and detectable > wording.limit:
        least = "even the largest possible difference would not have been detected"
        return f"not distinguished: {observed}; {least}"
    size = f"{fixed(detectable, decimals_of(detectable))}{wording.unit}"
    return f"not distinguished: {observed}; a difference of {size} would have been detected"


def _without_interval(estimate: Estimate, wording: DifferenceWording) -> str:
    mean, units = estimate.mean or 0.0, estimate.units
    # Three digits.
    decimals = min(6, max(0, 2 - math.floor(math.log10(abs(mean))))) if mean else 0
    size = f"{fixed(abs(mean), decimals)}{wording.unit}"
    way = f"{_word(mean, wording)} by {size}" if mean else "the same"
    if units == 1:
        return f"no interval: {way} in the only pair, and one pair says nothing about the spread"
    if estimate.std == 0:
        return f"no interval: {way} in all {units} pairs, so the spread cannot be estimated"
    return f"no interval: {estimate.undefined}"


def _word(mean: float, wording: DifferenceWording) -> str:
    return wording.more if mean > 0 else wording.less
