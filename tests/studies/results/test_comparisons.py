"""Pairing and families of comparisons."""

import pytest
from scipy import stats

from qkvary.studies.results.comparisons import Pairing, average_over_tasks, compare_family, pair_up
from qkvary.studies.results.verdicts import DifferenceWording

ACCURACY = DifferenceWording(higher_is_better=True, limit=1.0)
SEEDS = (1, 2, 3, 4, 5)


Scores = dict[tuple[str, int], float]


def pair(
    ours: Scores, settings: tuple[str, ...], baseline: Scores | None = None, **more: object
) -> Pairing:
    """Pair with a baseline that by default scores 0.5 wherever the variant has a value."""
    arguments: dict[str, object] = {
        "baseline_name": "QKV",
        "tasks": {"a": "reverse", "b": "reverse", "c": "sort"},
        "settings": settings,
        "seeds": SEEDS,
        "wording": ACCURACY,
        **more,
    }
    return pair_up(ours, baseline or dict.fromkeys(ours, 0.5), **arguments)  # type: ignore[arg-type]


def test_pairs_share_setting_and_seed() -> None:
    ours, baseline = {("a", 1): 0.9, ("a", 2): 0.8}, {("a", 2): 0.7, ("a", 3): 0.1}
    pairing = pair(ours, ("a",), baseline=baseline, seeds=(1, 2, 3))
    assert pairing.differences == pytest.approx((0.1,))
    assert (pairing.pairs, pairing.pairs_planned, pairing.unit) == (1, 3, "seed")


def test_tasks_count_alike_however_many_settings_they_have() -> None:
    values = {"a": 0.0, "b": 0.2, "c": 0.7}
    tasks = {"a": "reverse", "b": "reverse", "c": "sort"}
    assert average_over_tasks(values, tasks, ("a", "b", "c")) == pytest.approx(0.4)
    assert average_over_tasks({"a": 0.0}, tasks, ("a", "b")) is None


def test_a_seed_that_lacks_a_setting_is_no_unit() -> None:
    ours = {(name, seed): 0.6 for name in ("a", "b") for seed in SEEDS}
    del ours["b", 4]
    pairing = pair(ours, ("a", "b"))
    assert len(pairing.differences) == 4
    assert (pairing.pairs, pairing.pairs_planned) == (9, 10)


def test_few_seeds_and_many_settings_make_the_settings_the_units() -> None:
    settings = tuple(f"s{index}" for index in range(6))
    tasks = dict.fromkeys(settings, "reverse")
    ours = {(name, seed): 0.5 + 0.1 * int(name[1]) for name in settings for seed in (1, 2, 3)}
    pairing = pair(ours, settings, tasks=tasks, seeds=(1, 2, 3))
    assert pairing.unit == "setting"
    assert pairing.differences == pytest.approx([0.1 * index for index in range(6)])
    many = tuple(f"s{index}" for index in range(10))
    five = {(name, seed): 0.6 for name in many for seed in SEEDS}
    assert pair(five, many, tasks=dict.fromkeys(many, "reverse")).unit == "seed"
    few = tuple(settings[:5])
    assert pair(ours, few, tasks=tasks, seeds=(1, 2, 3)).unit == "seed"


def test_a_lost_run_takes_a_unit_away_and_never_changes_what_the_units_are() -> None:
    """Sixteen settings that agree would support what the five seeds do not distinguish."""
    settings = tuple(f"s{index}" for index in range(16))
    shifts = dict(zip(SEEDS, (0.3, -0.1, 0.25, -0.15, 0.2), strict=True))
    ours = {
        (name, seed): 0.5 + shifts[seed] + 0.001 * index
        for index, name in enumerate(settings)
        for seed in SEEDS
    }
    tasks = dict.fromkeys(settings, "reverse")
    whole = pair(ours, settings, tasks=tasks)
    del ours["s3", 4]
    lost = pair(ours, settings, tasks=tasks)
    assert (whole.unit, lost.unit) == ("seed", "seed")
    assert (len(whole.differences), len(lost.differences)) == (5, 4)
    for pairing in (whole, lost):
        assert compare_family({"v": pairing})["v"].verdict == "not distinguished"


def family(*groups: list[float]) -> dict[str, Pairing]:
    return {
        f"v{index}": Pairing(
            baseline="QKV",
            pairs=len(group),
            pairs_planned=5,
            unit="seed",
            differences=tuple(group),
            weights=(1.0,) * len(group),
            wording=ACCURACY,
        )
        for index, group in enumerate(groups)
    }


LOW = [-0.11, -0.12, -0.10, -0.13, -0.09]
NOISE = [-0.11, 0.12, -0.10, 0.13, -0.02]


def test_a_family_is_corrected_for_its_size() -> None:
    alone = compare_family(family(LOW))["v0"]
    together = compare_family(family(LOW, NOISE, [0.1]))
    first = together["v0"]
    interval = stats.ttest_1samp(LOW, 0).confidence_interval(1 - 0.05 / 3)
    assert (first.low, first.high) == pytest.approx((interval.low, interval.high))
    assert (first.low_single, first.high_single) == pytest.approx((alone.low, alone.high))
    assert [one.comparisons for one in together.values()] == [3, 3, 3]
    assert first.p_adjusted == pytest.approx(3 * (first.p_value or 0))
    assert together["v1"].p_adjusted == pytest.approx(min(1.0, 2 * (together["v1"].p_value or 0)))
    assert together["v2"].p_adjusted is None
    verdicts = [one.verdict for one in together.values()]
    assert verdicts == ["worse", "not distinguished", "no interval"]


def test_intervals_stay_within_what_is_possible() -> None:
    result = compare_family(family([0.2, -0.9]))["v0"]
    assert (result.low, result.high) == (-1.0, 1.0)
    assert result.detectable is None
    assert "even the largest possible difference would not have been detected" in result.sentence
