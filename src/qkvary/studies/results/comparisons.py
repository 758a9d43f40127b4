"""Computes paired differences from a reference, with intervals corrected for families of tests.

Settings are fixed, and seeds are random. In a table of several settings, the differences are
averaged over the settings for each seed. The seeds are the independent units; settings may depend
on each other.

The papers have few seeds and many settings. With fewer than five seeds, and at least twice as many
settings as seeds, the settings are the units. The interval then generalizes to similar settings,
and assumes that settings are independent. The units depend only on the planned runs, so a missing
run never changes them. Never imports torch.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from qkvary.studies.results.statistics import (
    Estimate,
    corrected_confidence,
    find_detectable,
    holm,
    mean,
    paired_t,
)
from qkvary.studies.results.summary import Difference, PairUnit
from qkvary.studies.results.verdicts import DifferenceWording, judge

Values = Mapping[tuple[str, int], float]
"""Finite results by (setting, seed)."""

CONFIDENCE = 0.95
"""Confidence of intervals, before correction for the number of comparisons."""
POWER = 0.8
"""Probability of seeing a detectable difference."""
ENOUGH_SEEDS = 5
"""With this number of planned seeds or more, the seeds are always the independent units."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The independent differences between two variants in one table."""

    baseline: str
    pairs: int
    pairs_planned: int
    unit: PairUnit
    differences: tuple[float, ...]
    weights: tuple[float, ...]
    """Weight of each difference in the mean; all tasks weigh the same."""
    wording: DifferenceWording


def average_over_tasks(
    by_setting: Mapping[str, float], tasks: Mapping[str, str], settings: Sequence[str]
) -> float | None:
    """Average over the settings of each task and then over the tasks, both unweighted.

    Returns None if one of the settings has no value.
    """
    if not all(setting in by_setting for setting in settings):
        return None
    groups: dict[str, list[float]] = {}
    for setting in settings:
        groups.setdefault(tasks[setting], []).append(by_setting[setting])
    return mean([mean(values) or 0.0 for values in groups.values()])


def pair_up(
    ours: Values,
    baseline: Values,
    *,
    baseline_name: str,
    tasks: Mapping[str, str],
    settings: Sequence[str],
    seeds: Sequence[int],
    wording: DifferenceWording,
) -> Pairing:
    """Pair two variants by setting and seed, and reduce the pairs to independent differences."""
    differences = {key: ours[key] - baseline[key] for key in ours if key in baseline}
    few = len(seeds) < ENOUGH_SEEDS and len(settings) >= 2 * len(seeds)
    unit: PairUnit = "setting" if few and len(settings) > 1 else "seed"
    if unit == "setting":
        found = _per_setting(differences, tasks, settings)
    else:
        per_seed = [
            {name: value for (name, its_seed), value in differences.items() if its_seed == seed}
            for seed in seeds
        ]
        averages = (average_over_tasks(one, tasks, settings) for one in per_seed)
        found = [(value, 1.0) for value in averages if value is not None]
    return Pairing(
        baseline=baseline_name,
        pairs=len(differences),
        pairs_planned=len(settings) * len(seeds),
        unit=unit,
        differences=tuple(value for value, _ in found),
        weights=tuple(weight for _, weight in found),
        wording=wording,
    )


def compare_family(pairings: Mapping[Key, Pairing]) -> dict[Key, Difference]:
    """Compute the differences of a family, with intervals that hold simultaneously."""
    singles = [
        paired_t(pairing.differences, pairing.weights, confidence=CONFIDENCE)
        for pairing in pairings.values()
    ]
    adjusted = holm([single.p_value for single in singles])
    return {
        key: _difference(pairing, single, p_adjusted, len(pairings))
        for (key, pairing), single, p_adjusted in zip(
            pairings.items(), singles, adjusted, strict=True
        )
    }


def _difference(
    pairing: Pairing, single: Estimate, p_adjusted: float | None, family: int
) -> Difference:
    wording, confidence = pairing.wording, corrected_confidence(CONFIDENCE, family)
    corrected = paired_t(pairing.differences, pairing.weights, confidence=confidence)
    corrected = replace(
        corrected, low=_within(corrected.low, wording), high=_within(corrected.high, wording)
    )
    detectable = find_detectable(corrected, power=POWER)
    verdict, sentence = judge(
        corrected,
        wording,
        detectable=detectable,
        pairs=pairing.pairs,
        pairs_planned=pairing.pairs_planned,
    )
    limit = math.inf if wording.limit is None else wording.limit
    is_impossible = detectable is not None and detectable > limit
    return Difference(
        baseline=pairing.baseline,
        pairs=pairing.pairs,
        pairs_planned=pairing.pairs_planned,
        units=corrected.units,
        unit=pairing.unit,
        mean=corrected.mean,
        low=corrected.low,
        high=corrected.high,
        low_single=_within(single.low, wording),
        high_single=_within(single.high, wording),
        p_value=single.p_value,
        p_adjusted=p_adjusted,
        comparisons=family,
        detectable=None if is_impossible else detectable,
        verdict=verdict,
        sentence=sentence,
    )


def _within(bound: float | None, wording: DifferenceWording) -> float | None:
    """Clip one end of an interval to the largest possible difference.

    The coverage does not change.
    """
    if bound is None or wording.limit is None:
        return bound
    return max(-wording.limit, min(wording.limit, bound))


def _per_setting(
    differences: Values, tasks: Mapping[str, str], settings: Sequence[str]
) -> list[tuple[float, float]]:
    """Return the mean difference and the weight of every setting that has a pair.

    All tasks weigh the same, and so do the settings of a task. If a task has no pair, the list
    is empty.
    """
    groups: dict[str, list[float]] = {tasks[setting]: [] for setting in settings}
    for setting in settings:
        values = [value for (name, _), value in differences.items() if name == setting]
        if values:
            groups[tasks[setting]].append(mean(values) or 0.0)
    if not all(groups.values()):
        return []
    return [
        (value, 1.0 / (len(groups) * len(group))) for group in groups.values() for value in group
    ]
