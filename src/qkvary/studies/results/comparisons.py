"""Differences of variants to the baseline or another reference: pairs of runs, and families.

The settings of a study are fixed (they were chosen), the seeds are drawn. So where a table covers
several settings, the differences are averaged over the settings for each seed, and the seeds are
the independent units; nothing is assumed about how settings depend on each other. A study of many
settings with few seeds, as the papers have them, would know next to nothing that way. There (fewer
than five seeds, and at least twice as many settings) the settings are the units: the interval then
speaks about settings like these, and takes them as independent. What a table was planned with
decides, so that a lost run takes a unit away and never changes what the units are.

Never imports torch.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from qkvary.studies.results.statistics import (
    corrected_confidence,
    detectable_difference,
    holm,
    mean,
    weighted_t,
)
from qkvary.studies.results.summary import Difference, PairUnit
from qkvary.studies.results.verdicts import Scale, judge

Values = Mapping[tuple[str, int], float]
"""Finite results by (setting, seed)."""

ENOUGH_SEEDS = 5
"""From this many planned seeds on, seeds are the units however many settings there are."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How sure an interval is, before it is corrected for the number of comparisons."""

    confidence: float = 0.95
    power: float = 0.8
    """Probability with which a detectable difference is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The independent differences of one variant to another in one table."""

    baseline: str
    pairs: int
    pairs_planned: int
    unit: PairUnit
    differences: tuple[float, ...]
    weights: tuple[float, ...]
    """What each of them counts in the difference of the means, which weighs tasks alike."""
    scale: Scale


def average_over_tasks(
    by_setting: Mapping[str, float], tasks: Mapping[str, str], settings: Sequence[str]
) -> float | None:
    """Average over the settings of each task and then over the tasks, both unweighted.

    Args:
        by_setting: A figure for each setting.
        tasks: The task of each setting.
        settings: The settings to cover; if one has no figure, there is no average.
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
    scale: Scale,
) -> Pairing:
    """Pair two variants by setting and seed, and reduce the pairs to independent differences."""
    differences = {key: ours[key] - baseline[key] for key in ours if key in baseline}
    unit = unit_of(settings, seeds)
    if unit == "seed":
        per_seed = [_of_seed(differences, seed, tasks, settings) for seed in seeds]
        found = [(value, 1.0) for value in per_seed if value is not None]
    else:
        found = _per_setting(differences, tasks, settings)
    return Pairing(
        baseline=baseline_name,
        pairs=len(differences),
        pairs_planned=len(settings) * len(seeds),
        unit=unit,
        differences=tuple(value for value, _ in found),
        weights=tuple(weight for _, weight in found),
        scale=scale,
    )


def unit_of(settings: Sequence[str], seeds: Sequence[int]) -> PairUnit:
    """What the independent units of a table are, by what was planned."""
    few = len(seeds) < ENOUGH_SEEDS and len(settings) >= 2 * len(seeds)
    return "setting" if few and len(settings) > 1 else "seed"


def decide(pairings: Mapping[Key, Pairing], level: Level) -> dict[Key, Difference]:
    """Compare a whole family: every interval holds together with all others of the family."""
    if not pairings:
        return {}
    family = len(pairings)
    confidence = corrected_confidence(level.confidence, family)
    alone = {
        key: weighted_t(pairing.differences, pairing.weights, confidence=level.confidence)
        for key, pairing in pairings.items()
    }
    adjusted = dict(
        zip(alone, holm([estimate.p_value for estimate in alone.values()]), strict=True)
    )
    return {
        key: _difference(pairing, level, confidence, family, adjusted[key])
        for key, pairing in pairings.items()
    }


def _difference(
    pairing: Pairing, level: Level, confidence: float, family: int, p_adjusted: float | None
) -> Difference:
    scale = pairing.scale
    alone = weighted_t(pairing.differences, pairing.weights, confidence=level.confidence)
    together = weighted_t(pairing.differences, pairing.weights, confidence=confidence)
    together = replace(
        together, low=_within(together.low, scale), high=_within(together.high, scale)
    )
    detectable = None
    if together.std and together.undefined is None:
        detectable = detectable_difference(
            together.std,
            together.units,
            degrees=together.degrees,
            confidence=confidence,
            power=level.power,
        )
    verdict, sentence = judge(
        together,
        scale,
        detectable=detectable,
        pairs=pairing.pairs,
        pairs_planned=pairing.pairs_planned,
    )
    return Difference(
        baseline=pairing.baseline,
        pairs=pairing.pairs,
        pairs_planned=pairing.pairs_planned,
        units=together.units,
        unit=pairing.unit,
        mean=together.mean,
        low=together.low,
        high=together.high,
        low_single=_within(alone.low, scale),
        high_single=_within(alone.high, scale),
        p_value=alone.p_value,
        p_adjusted=p_adjusted,
        comparisons=family,
        detectable=_possible(detectable, scale),
        verdict=verdict,
        sentence=sentence,
    )


def _within(bound: float | None, scale: Scale) -> float | None:
    """Cut an interval to what is possible, which costs it none of its coverage."""
    if bound is None or scale.limit is None:
        return bound
    return max(-scale.limit, min(scale.limit, bound))


def _possible(size: float | None, scale: Scale) -> float | None:
    return None if size is not None and scale.limit is not None and size > scale.limit else size


def _of_seed(
    differences: Values, seed: int, tasks: Mapping[str, str], settings: Collection[str]
) -> float | None:
    """Return the average difference of one seed, or None where a setting lacks its pair."""
    found = {
        setting: differences[setting, seed]
        for setting in settings
        if (setting, seed) in differences
    }
    return average_over_tasks(found, tasks, tuple(settings))


def _per_setting(
    differences: Values, tasks: Mapping[str, str], settings: Sequence[str]
) -> list[tuple[float, float]]:
    """Return the mean difference of every setting that has a pair, and what it counts.

    Tasks count alike, and so do the settings of one. Nothing where a whole task has no pair: its
    share of the average is unknown.
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
