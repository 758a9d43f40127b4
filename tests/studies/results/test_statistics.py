"""Statistics against scipy, and coverage by simulation at the counts that studies have."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qkvary.studies.results import statistics as s

TRIALS = 1_000
MONTE_CARLO = 3 * math.sqrt(0.95 * 0.05 / TRIALS)
"""Three standard errors of a coverage of 95 % that was simulated TRIALS times."""

finite = st.floats(-1e3, 1e3, allow_nan=False).map(lambda value: round(value, 3))


def test_spreads_are_those_of_numpy_and_undefined_for_one_value() -> None:
    values = [0.2, 0.9, 0.4, 0.7]
    assert s.mean(values) == pytest.approx(np.mean(values))
    assert s.sample_std(values) == pytest.approx(np.std(values, ddof=1))
    assert s.population_std(values) == pytest.approx(np.std(values))
    assert s.mean([]) is None
    assert s.sample_std([1.0]) is None
    assert s.population_std([1.0]) is None


def test_pooled_std_weighs_groups_by_their_degrees_of_freedom() -> None:
    groups = [[1.0, 2.0, 3.0], [10.0, 14.0], [7.0]]
    squares = sum((len(g) - 1) * np.var(g, ddof=1) for g in groups[:2])
    assert s.pooled_std(groups) == pytest.approx(math.sqrt(squares / 3))
    assert s.pooled_std([[1.0], [2.0]]) is None


def test_paired_t_is_the_paired_t_test_of_scipy() -> None:
    ours, baseline = [0.91, 0.84, 0.97, 0.66, 0.71], [0.95, 0.89, 0.96, 0.81, 0.90]
    result = s.paired_t((np.array(ours) - baseline).tolist(), confidence=0.99)
    reference = stats.ttest_rel(ours, baseline)
    interval = reference.confidence_interval(0.99)
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.p_value == pytest.approx(reference.pvalue)
    assert result.units == 5


@pytest.mark.parametrize(
    ("differences", "mean", "reason"),
    [
        ([], None, "no pair of runs"),
        ([0.25], 0.25, "a single pair of runs has no spread"),
        ([0.0, 0.0, 0.0], 0.0, "all 3 differences are equal"),
        ([0.3 - 0.2, 0.4 - 0.3, 0.5 - 0.4], 0.1, "all 3 differences are equal"),
    ],
)
def test_nothing_is_claimed_where_there_is_no_spread(
    differences: list[float], mean: float | None, reason: str
) -> None:
    result = s.paired_t(differences)
    assert result.mean == (None if mean is None else pytest.approx(mean))
    assert (result.low, result.high, result.p_value) == (None, None, None)
    assert result.undefined is not None
    assert reason in result.undefined


@given(st.lists(finite, min_size=0, max_size=6), st.floats(0.1, 9.0))
def test_equal_weights_are_no_weights(values: list[float], weight: float) -> None:
    assert s.paired_t(values, [weight] * len(values)) == s.paired_t(values)


HEAVY = (1 / 2, *[1 / 8] * 4)
"""One setting of one task, and four of another."""


MILD = (*[1 / 6] * 3, *[1 / 10] * 5)
"""Three settings of one task, and five of another."""


def coverage(
    noise: Callable[[np.random.Generator, int], np.ndarray], weights: Sequence[float]
) -> float:
    """Return how often the interval contains the true difference, zero."""
    generator = np.random.default_rng(20_260)
    hits = 0
    for _ in range(TRIALS):
        found = s.paired_t(noise(generator, len(weights)).tolist(), weights)
        hits += found.low is None or found.high is None or found.low <= 0 <= found.high
    return hits / TRIALS


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_a_weighted_interval_has_its_level_or_more(spread: float) -> None:
    """Also where the spread of the heavier values is another one than that of the others."""

    def uneven(weights: Sequence[float]) -> Callable[[np.random.Generator, int], np.ndarray]:
        scales = np.where(np.asarray(weights) == max(weights), spread, 1.0)
        return lambda generator, count: generator.normal(size=count) * scales

    assert 0.95 - MONTE_CARLO < coverage(uneven(MILD), MILD) < 0.985
    assert coverage(uneven(HEAVY), HEAVY) > 0.97


@pytest.mark.parametrize("noise", ["exponential", "lognormal"])
def test_an_interval_keeps_its_level_under_skewed_noise_of_both_runs(noise: str) -> None:
    def differences(generator: np.random.Generator, count: int) -> np.ndarray:
        draw = getattr(generator, noise)
        return draw(size=count) - draw(size=count)

    assert 0.95 - MONTE_CARLO < coverage(differences, (1.0,) * 3) < 0.985


def test_welch_is_that_of_scipy() -> None:
    ours, others = [0.91, 0.84, 0.97, 0.66], [0.95, 0.99, 0.96, 0.97, 0.98]
    result = s.welch_t(s.paired_t(ours), s.paired_t(others))
    reference = stats.ttest_ind(ours, others, equal_var=False)
    interval = reference.confidence_interval(0.95)
    assert result is not None
    assert (result.low, result.high) == pytest.approx((interval.low, interval.high))
    assert result.p_value == pytest.approx(reference.pvalue)
    assert result.degrees == pytest.approx(reference.df)
    assert s.welch_t(s.paired_t(ours), s.paired_t([0.1])) is None
    assert s.welch_t(s.paired_t([0.1, 0.1]), s.paired_t(ours)) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_results_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="must be finite; count diverged runs separately"):
        s.paired_t([0.1, bad])


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8, unique=True))
def test_holm_is_its_definition_and_never_above_bonferroni(p_values: list[float]) -> None:
    """Reject in order while p <= alpha / (m - k)."""
    count, order = len(p_values), sorted(p_values)
    for p, value in zip(p_values, s.holm(p_values), strict=True):
        before = order[: order.index(p) + 1]
        steps = max((count - k) * other for k, other in enumerate(before))
        assert value == pytest.approx(min(1.0, steps))
        assert p <= (value or 0.0) <= min(1.0, count * p) + 1e-12


def test_a_comparison_without_p_value_still_counts() -> None:
    assert s.holm([0.01, None, 0.04]) == pytest.approx([0.03, None, 0.08])


def test_corrections_at_known_values() -> None:
    assert s.corrected_confidence(0.95, 10) == pytest.approx(0.995)


@pytest.mark.parametrize(
    ("units", "confidence", "power"),
    [(2, 0.95, 0.8), (3, 0.95, 0.8), (5, 0.99, 0.5), (10, 0.999, 0.9)],
)
def test_detectable_difference_has_its_power(units: int, confidence: float, power: float) -> None:
    estimate = s.Estimate(units=units, confidence=confidence, std=0.3, degrees=units - 1)
    size = s.find_detectable(estimate, power=power)
    assert size is not None
    shift, critical = size / 0.3 * math.sqrt(units), stats.t.isf((1 - confidence) / 2, units - 1)
    reached = stats.nct.sf(critical, units - 1, shift)
    assert reached == pytest.approx(power, abs=1e-4)


@pytest.mark.parametrize("trials", [1, 3, 5, 17])
def test_wilson_is_that_of_scipy(trials: int) -> None:
    for successes in range(trials + 1):
        reference = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        assert s.wilson(successes, trials) == pytest.approx((reference.low, reference.high))


def test_sign_test_is_exact_and_cannot_decide_at_five_pairs() -> None:
    assert s.sign_test([1.0] * 5) == pytest.approx(2 / 32)
    assert s.sign_test([1.0] * 6 + [0.0]) == pytest.approx(2 / 64)
    assert s.sign_test([0.0, 0.0]) is None


@pytest.mark.parametrize(
    ("steps", "median"),
    [
        ([], None),
        ([100, 300, 200], 200.0),
        ([100, None, 200], 200.0),
        ([100, None, None], None),
        ([100, 200, None, None], None),
        ([100, 200, 400, None], 300.0),
        ([None], None),
    ],
)
def test_median_counts_unsolved_runs_as_later_than_all_others(
    steps: list[int | None], median: float | None
) -> None:
    assert s.median_steps(steps) == median


def test_restricted_steps_end_at_the_horizon() -> None:
    assert s.restricted_steps([120, None, 900], 780) == [120.0, 780.0, 780.0]
    assert s.restricted_steps([], 780) == []


def test_a_repeat_lies_in_its_interval_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    hits, trials = 0, 2_000
    for _ in range(trials):
        interval = s.repeat_interval(random.normal(3.0, 2.0, 4).tolist(), 5, confidence=0.9)
        assert interval is not None
        hits += interval[0] <= random.normal(3.0, 2.0, 5).mean() <= interval[1]
    # Four standard errors of a share of 0.9.
    assert abs(hits / trials - 0.9) < 4 * math.sqrt(0.09 / trials)
    assert s.repeat_interval([1.0], 5) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=9))
def test_rank_correlation_is_that_of_ranks(pairs: list[tuple[int, int]]) -> None:
    first, second = (list(map(float, side)) for side in zip(*pairs, strict=True))
    found = s.rank_correlation(first, second)
    if len({*first}) == 1 or len({*second}) == 1:
        assert found is None
        return
    assert found == pytest.approx(stats.spearmanr(first, second).statistic)
