"""Plain sentences for figures: what was shown, and what would have been seen.

A verdict follows the corrected interval and nothing else. "Not distinguished" is never "equal": the
sentence says how large a difference would have been noticed. Never imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qkvary.studies.results.statistics import Estimate
from qkvary.studies.results.summary import Verdict
from qkvary.text.numbers import fixed, interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How differences of one quantity are worded."""

    higher_is_better: bool
    more: str = "higher"
    """Word for a positive difference."""
    less: str = "lower"
    """Word for a negative difference."""
    unit: str = ""
    """Written after the figure, with its space."""
    limit: float | None = None
    """The largest difference that is possible; None where there is no limit."""


def steps_scale(horizon: int) -> Scale:
    """Return the scale of the steps that a task took to be solved."""
    return Scale(
        higher_is_better=False, more="later", less="sooner", unit=" steps", limit=float(horizon)
    )


def decimals_of(spread: float | None) -> int:
    """Return the decimals that show two digits of a spread: 0.034 gives 3, 120 gives 0."""
    if spread is None or not math.isfinite(spread) or spread <= 0:
        return 3
    return min(6, max(0, 1 - math.floor(math.log10(spread))))


def judge(
    estimate: Estimate,
    scale: Scale,
    *,
    detectable: float | None,
    pairs: int,
    pairs_planned: int,
) -> tuple[Verdict, str]:
    """Return the verdict on a paired difference, and the sentence that states it.

    Args:
        estimate: The difference to the baseline, its confidence already corrected.
        scale: The words for more and less, and which of the two is good.
        detectable: What would have been seen, for a difference that was not.
        pairs: Pairs of finished runs.
        pairs_planned: Pairs that the study asks for; the sentence says where some are missing.
    """
    short = "" if pairs == pairs_planned else f", from {pairs} of {pairs_planned} pairs"
    if estimate.mean is None and not pairs:
        return "no interval", f"not compared: no pair of finished runs out of {pairs_planned}"
    if estimate.mean is None:
        return "no interval", (
            f"not compared: {pairs} of {pairs_planned} pairs finished, too few for a difference "
            "over all settings"
        )
    if estimate.low is None or estimate.high is None:
        return "no interval", _without_interval(estimate, scale) + short
    if estimate.low <= 0 <= estimate.high:
        return "not distinguished", _not_distinguished(estimate, scale, detectable) + short
    better = (estimate.mean > 0) == scale.higher_is_better
    sentence = f"supported: {_direction(estimate, scale)}{short}"
    return ("better" if better else "worse"), sentence


def _direction(estimate: Estimate, scale: Scale) -> str:
    """Say a difference that has a direction, as a size: ``lower by 0.12 [0.05, 0.19]``."""
    mean, low, high = estimate.mean or 0.0, estimate.low or 0.0, estimate.high or 0.0
    decimals = decimals_of((high - low) / 2)
    near, far = (low, high) if mean > 0 else (-high, -low)
    size = f"{fixed(abs(mean), decimals)}{scale.unit}"
    return f"{_word(mean, scale)} by {size} {interval(near, far, decimals)}"


def _not_distinguished(estimate: Estimate, scale: Scale, detectable: float | None) -> str:
    mean, low, high = estimate.mean or 0.0, estimate.low or 0.0, estimate.high or 0.0
    decimals = decimals_of((high - low) / 2)
    observed = f"{fixed(mean, decimals)}{scale.unit} {interval(low, high, decimals)}"
    if detectable is None:
        return f"not distinguished: {observed}"
    if scale.limit is not None and detectable > scale.limit:
        return f"not distinguished: {observed}; no possible difference would have been seen"
    size = f"{fixed(detectable, decimals_of(detectable))}{scale.unit}"
    return f"not distinguished: {observed}; a difference of {size} would have been seen"


def _without_interval(estimate: Estimate, scale: Scale) -> str:
    mean, units = estimate.mean or 0.0, estimate.units
    size = f"{fixed(abs(mean), _digits(mean))}{scale.unit}"
    if units == 1:
        way = f"{_word(mean, scale)} by {size}" if mean else "the same"
        return f"no interval: {way} in a single pair, which says nothing about its spread"
    if estimate.std == 0:
        way = f"{_word(mean, scale)} by {size}" if mean else "the same"
        return f"no interval: {way} in all {units} pairs, which leaves no spread to go by"
    return f"no interval: {estimate.undefined}"


def _word(mean: float, scale: Scale) -> str:
    return scale.more if mean > 0 else scale.less


def _digits(value: float) -> int:
    """Return decimals that show three digits of a value."""
    return min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 0
