"""Computes means, intervals and tests for a few paired runs. Never imports torch.

A study has three to ten seeds, so every method is chosen to keep its nominal error rate with that
few values: the t interval of paired differences, never a percentile bootstrap (with three values,
nominal 95 % bootstrap intervals cover the truth only about 75 % of the time).

The t interval requires that the *differences* are not strongly skewed. If the noise of both
networks has the same distribution, whatever its shape, the differences are symmetric, and the
interval is exact or conservative. Noise that affects only one of the two networks (for example, if
one in ten of its runs fails to learn) is not covered; with five pairs, no method covers it.

Undefined values are None: there is no interval for a single pair, or for pairs that are all equal
(their estimated spread is zero, which says nothing about the next seed).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import numpy as np
import scipy as _untyped_scipy

# scipy ships no types: it is opaque to the type checker, and its results are converted. It imports
# its modules when they are first used, which takes as long as the rest of a command's imports.
scipy = cast(Any, _untyped_scipy)

_EQUAL = 1e-9
"""Differences count as equal if their spread is at most this share of the largest of them."""

_POWER_SLICES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean of independent values with an interval and a test against zero."""

    units: int
    confidence: float
    mean: float | None = None
    std: float | None = None
    """Sample standard deviation. For weighted means and for differences of two means, it is the
    standard error times the square root of ``units``. None for fewer than two values."""
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    undefined: str | None = None
    """The reason if there is no interval, else None."""
    degrees: float | None = None
    """Degrees of freedom of the spread; None without an interval."""


def mean(values: Sequence[float]) -> float | None:
    """Return the arithmetic mean, or None without values."""
    return math.fsum(values) / len(values) if len(values) else None


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with divisor n - 1, or None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def population_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with divisor n, as the papers do; None for fewer than two."""
    return float(np.std(values)) if len(values) > 1 else None


def pooled_std(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the standard deviation within groups, pooled by degrees of freedom.

    Returns None if no group has two values.
    """
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    squares = sum((len(group) - 1) * float(np.var(group, ddof=1)) for group in several)
    return math.sqrt(squares / sum(len(group) - 1 for group in several))


def corrected_confidence(confidence: float, comparisons: int) -> float:
    """Return the confidence that each interval needs so that all hold at once (Bonferroni)."""
    return 1 - (1 - confidence) / comparisons


def paired_t(
    differences: Sequence[float],
    weights: Sequence[float] | None = None,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """Return the mean of the differences with Student's interval and two-sided p-value.

    With unequal weights, squared deviations are corrected for the leverage of each value, so that
    the standard error is unbiased; the degrees of freedom are Satterthwaite's. A few heavy values
    leave few degrees of freedom.

    Source: Bell and McCaffrey 2002.
    """
    if not all(math.isfinite(value) for value in differences):
        raise ValueError("differences must be finite; count diverged runs separately")
    units, centre, spread = len(differences), mean(differences), sample_std(differences)
    if centre is None:
        return Estimate(units=units, confidence=confidence, undefined="no pair of runs")
    if spread is None:
        reason = "a single pair of runs has no spread"
        return Estimate(units=units, mean=centre, confidence=confidence, undefined=reason)
    if spread <= _EQUAL * max(abs(value) for value in differences):
        reason = f"all {units} differences are equal, so their spread cannot be estimated"
        return Estimate(units=units, mean=centre, std=0.0, confidence=confidence, undefined=reason)
    if weights is not None and max(weights) - min(weights) > _EQUAL * max(weights):
        centre, error, degrees = _weighted_mean(differences, weights)
        return _estimate(units, centre, error * math.sqrt(units), error, degrees, confidence)
    degrees = units - 1
    return _estimate(units, centre, spread, spread / math.sqrt(units), degrees, confidence)


def _weighted_mean(
    differences: Sequence[float], weights: Sequence[float]
) -> tuple[float, float, float]:
    """Return the weighted mean, its standard error, and the degrees of freedom of the error."""
    values = np.asarray(differences, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64) / math.fsum(weights)
    centre = math.fsum(shares * values)
    scales = shares**2 / (1 - 2 * shares + float(shares @ shares))
    error = math.sqrt(math.fsum(scales * (values - centre) ** 2))
    deviations = np.eye(len(values)) - shares
    form = deviations.T @ (scales[:, None] * deviations)
    degrees = float(np.trace(form)) ** 2 / float(np.sum(form * form))
    return centre, error, degrees


def welch_t(ours: Estimate, others: Estimate) -> Estimate | None:
    """Return the difference of two independent means with Welch's 95 % interval.

    Returns None if one of the two estimates has no mean or no spread.

    Source: Welch 1947.
    """
    if ours.mean is None or others.mean is None or not ours.std or not others.std:
        return None
    units, centre = ours.units + others.units, ours.mean - others.mean
    squares = [one.std**2 / one.units for one in (ours, others) if one.std]
    error = math.sqrt(math.fsum(squares))
    rest = (
        square**2 / (one.units - 1) for square, one in zip(squares, (ours, others), strict=True)
    )
    degrees = error**4 / math.fsum(rest)
    return _estimate(units, centre, error * math.sqrt(units), error, degrees, 0.95)


def repeat_interval(
    values: Sequence[float], repeats: int, *, confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return the prediction interval of the mean of ``repeats`` further values.

    For n values and m further values, the interval is the mean plus or minus t s sqrt(1/n + 1/m),
    because both means are uncertain. Returns None for fewer than two values.

    Source: Student's prediction interval for a mean.
    """
    center, spread = mean(values), sample_std(values)
    if center is None or spread is None:
        return None
    width = _critical(confidence, len(values) - 1) * spread
    width *= math.sqrt(1 / len(values) + 1 / repeats)
    return center - width, center + width


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values; a None stays None but counts as a comparison.

    Source: Holm 1979.
    """
    family = len(p_values)
    ranked = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * family
    largest = 0.0
    for rank, (p, index) in enumerate(ranked):
        largest = max(largest, min(1.0, (family - rank) * p))
        adjusted[index] = largest
    return adjusted


def find_detectable(estimate: Estimate, *, power: float = 0.8) -> float | None:
    """Return the smallest true difference that the interval would have distinguished from zero.

    Solves P(T < -t or T > t) = ``power`` for the noncentral t statistic T of the differences,
    treating the estimated standard deviation of the differences as if it were known. Returns None
    without an interval.
    (T's distribution is integrated over the estimated spread: the closed form in scipy returns NaN
    for the large t of corrected intervals at two or three units.)
    """
    if not estimate.std or estimate.degrees is None:
        return None
    ratio = _detectable_ratio(estimate.units, estimate.degrees, estimate.confidence, power)
    return ratio * estimate.std


def wilson(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Wilson's score interval of a proportion, or None without trials.

    The interval lies within [0, 1]. It is not a single point even if all trials had the same
    result.

    Source: Wilson 1927.
    """
    if trials == 0:
        return None
    z = -float(scipy.special.ndtri((1 - confidence) / 2))
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    spread = math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    half = z * spread / (1 + z * z / trials)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high


def sign_test(differences: Sequence[float]) -> float | None:
    """Return the exact two-sided p-value of the sign test; ties are left out.

    With five pairs, the p-value is at least 2/32.
    """
    positive = sum(value > 0 for value in differences)
    negative = sum(value < 0 for value in differences)
    if positive + negative == 0:
        return None
    return float(scipy.stats.binomtest(positive, positive + negative).pvalue)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's correlation of pairs, or None if ``first`` or ``second`` is constant."""
    if len({*first}) < 2 or len({*second}) < 2:
        return None
    return float(scipy.stats.spearmanr(first, second).statistic)


def median_steps(steps: Sequence[int | None]) -> float | None:
    """Return the median of steps to solve, where None means "not within the horizon".

    Unsolved runs rank above all solved ones. Returns None if the middle run is unsolved, because
    the median is then beyond the horizon.
    """
    if not steps:
        return None
    middle = median(math.inf if value is None else float(value) for value in steps)
    return middle if math.isfinite(middle) else None


def restricted_steps(steps: Sequence[int | None], horizon: int) -> list[float]:
    """Return min(steps, horizon) of each run; a run that did not solve the task has None steps.

    The mean of the values is the restricted mean time to solution. Unlike a mean over the solved
    runs, it does not reward a variant for failing the hard seeds. Unlike a median, it is defined
    when few runs are solved. Use :func:`paired_t` for paired differences of the values.

    Source: Royston and Parmar 2013.
    """
    return [float(horizon if value is None else min(value, horizon)) for value in steps]


def _critical(confidence: float, degrees: float) -> float:
    """Return Student's two-sided critical value, much faster than ``scipy.stats``."""
    return -float(scipy.special.stdtrit(degrees, (1 - confidence) / 2))


def _estimate(
    units: int, centre: float, std: float, error: float, degrees: float, confidence: float
) -> Estimate:
    """Return the t interval of a mean, and the t test of the mean against zero."""
    half = _critical(confidence, degrees) * error
    return Estimate(
        units=units,
        mean=centre,
        std=std,
        low=centre - half,
        high=centre + half,
        confidence=confidence,
        p_value=float(2 * scipy.special.stdtr(degrees, -abs(centre) / error)),
        degrees=degrees,
    )


@functools.cache
def _detectable_ratio(units: int, degrees: float, confidence: float, power: float) -> float:
    """Return the detectable difference divided by the standard deviation."""
    critical = _critical(confidence, degrees)
    # Ratio of the estimated to the true spread, at the midpoints of slices of equal probability.
    slices = (np.arange(_POWER_SLICES) + 0.5) / _POWER_SLICES
    spread = np.sqrt(2 * scipy.special.gammaincinv(degrees / 2, slices) / degrees)

    def missing_power(noncentrality: float) -> float:
        above = scipy.special.ndtr(noncentrality - critical * spread)
        below = scipy.special.ndtr(-noncentrality - critical * spread)
        return float(np.mean(above + below)) - power

    upper = max(1.0, critical)
    while missing_power(upper) < 0:
        upper *= 2
    return float(scipy.optimize.brentq(missing_power, 0.0, upper, xtol=1e-9)) / math.sqrt(units)
