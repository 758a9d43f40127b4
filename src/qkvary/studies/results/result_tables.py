"""The rows of a study's result tables. Which tables there are is in ``table_plans``.

Never imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from qkvary.studies.results.comparisons import Level, Values, average_over_tasks, decide
from qkvary.studies.results.observations import Observation, count
from qkvary.studies.results.statistics import (
    mean,
    median_steps,
    pooled_std,
    population_std,
    sign_test,
    wilson,
)
from qkvary.studies.results.summary import CostRow, Difference, ResultTable, Solving, VariantRow
from qkvary.studies.results.table_plans import Material, Plan

Comparison = tuple[str, str]
"""Table name and variant."""

Duels = Mapping[tuple[str, str], Difference]
"""Corrected paired differences, first variant minus second, for ordered pairs of variants."""


def build_tables(
    material: Material, plans: Sequence[Plan], level: Level
) -> tuple[ResultTable, ...]:
    """Fill all tables of a study from its selected runs.

    The differences of the averages and tasks form one family of comparisons, those of the single
    settings another, and steps to solve are corrected among themselves in the same two groups.
    """
    differences: dict[Comparison, Difference] = {}
    steps: dict[Comparison, Difference] = {}
    for details in (False, True):
        group = [plan for plan in plans if (plan.kind == "setting") == details]
        metric_pairs = {
            (plan.name, variant): material.pair_metric(plan, variant, material.baseline)
            for plan in group
            for variant in _compared(plan, material.baseline)
        }
        step_pairs = {
            (plan.name, variant): material.pair_steps(plan, variant, material.baseline)
            for plan in group
            if plan.threshold is not None
            for variant in _compared(plan, material.baseline)
        }
        differences |= decide(metric_pairs, level)
        steps |= decide(step_pairs, level)
    return tuple(
        ResultTable(
            name=plan.name,
            kind=plan.kind,
            tasks=plan.tasks,
            settings=plan.settings,
            metric=plan.metric,
            higher_is_better=plan.higher_is_better,
            rows=tuple(
                _row(material, plan, variant, differences, steps, level)
                for variant in plan.variants
            ),
        )
        for plan in plans
    )


def build_duels(material: Material, plan: Plan, level: Level) -> Duels:
    """Compare every variant of one table with every other, corrected for the number of pairs."""
    pairs = {
        (one, other): material.pair_metric(plan, one, other)
        for one, other in itertools.combinations(plan.variants, 2)
    }
    forward = decide(pairs, level)
    swapped = {(other, one): material.pair_metric(plan, other, one) for one, other in pairs}
    return {**forward, **decide(swapped, level)}


def headline_family(tables: Sequence[ResultTable]) -> int:
    """Return how many comparisons the averages and tasks make together."""
    return sum(
        row.difference is not None
        for table in tables
        if table.kind != "setting"
        for row in table.rows
    )


def _compared(plan: Plan, baseline: str) -> list[str]:
    """The rows that differ from a baseline in the same table, if it is there."""
    if baseline not in plan.variants:
        return []
    return [variant for variant in plan.variants if variant != baseline]


def _row(
    material: Material,
    plan: Plan,
    variant: str,
    differences: Mapping[Comparison, Difference],
    steps: Mapping[Comparison, Difference],
    level: Level,
) -> VariantRow:
    runs = material.runs(variant, plan)
    groups = _by_setting(material.values(variant, plan), plan.settings)
    means = _means(groups)
    done = [run for run in runs if run.row.state == "done"]
    key = (plan.name, variant)
    return VariantRow(
        variant=variant,
        counts=count(runs),
        mean=average_over_tasks(means, material.tasks, plan.settings),
        std_seeds=pooled_std(list(groups.values())),
        std_settings=population_std(list(means.values()))
        if len(means) == len(plan.settings)
        else None,
        difference=differences.get(key),
        solving=_solving(material, plan, variant, steps.get(key), level),
        training_seconds=mean([_timing(run, "training_seconds") for run in done]),
        steps_per_second=mean([_timing(run, "steps_per_second") for run in done]),
        costs=_costs(runs, plan.settings),
        learning_rates=_learning_rates(runs, plan.settings),
        utilization=mean(_utilizations(done)),
    )


def _solving(
    material: Material, plan: Plan, variant: str, difference: Difference | None, level: Level
) -> Solving | None:
    if plan.threshold is None:
        return None
    steps = material.steps(variant, plan)
    solved = sum(value is not None for value in steps.values())
    share = wilson(solved, len(steps), confidence=level.confidence)
    ours = material.restricted(variant, plan)
    theirs = material.restricted(material.baseline, plan)
    pairs = [ours[key] - theirs[key] for key in ours if key in theirs]
    return Solving(
        threshold=plan.threshold,
        horizon=plan.horizon,
        runs=len(steps),
        solved=solved,
        proportion_low=share[0] if share else None,
        proportion_high=share[1] if share else None,
        median_steps=median_steps(list(steps.values())),
        restricted_mean_steps=average_over_tasks(
            _means(_by_setting(ours, plan.settings)), material.tasks, plan.settings
        ),
        difference=difference,
        p_sign=sign_test(pairs) if difference is not None else None,
    )


def _by_setting(values: Values, settings: Sequence[str]) -> dict[str, list[float]]:
    return {
        setting: [value for (name, _), value in values.items() if name == setting]
        for setting in settings
    }


def _means(groups: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each setting that has a value."""
    return {name: value for name, group in groups.items() if (value := mean(group)) is not None}


def _timing(run: Observation, name: str) -> float:
    return float(run.record.timing.get(name, 0.0)) if run.record else 0.0


def _utilizations(runs: Sequence[Observation]) -> list[float]:
    records = (run.record for run in runs)
    return [
        float(record.timing["utilization"])
        for record in records
        if record is not None and "utilization" in record.timing
    ]


def _learning_rates(runs: Sequence[Observation], settings: Sequence[str]) -> tuple[float, ...]:
    rates = {run.row.setting: run.row.learning_rate for run in runs}
    return tuple(rates[setting] for setting in settings if setting in rates)


def _costs(runs: Sequence[Observation], settings: Sequence[str]) -> CostRow | None:
    """Return the costs of one network, averaged over the settings of a table."""
    found = {run.row.setting: run.record.costs for run in runs if run.record and run.record.costs}
    costs = [found[setting] for setting in settings if setting in found]
    if not costs or len(costs) < len(settings):
        return None
    parts = list(costs[0].get("parameters", {}))
    return CostRow(
        parameters=tuple(
            (part, mean([float(cost["parameters"].get(part, 0)) for cost in costs]) or 0.0)
            for part in parts
        ),
        macs_per_token=_mean_of([cost.get("macs_per_token") for cost in costs]),
        macs_per_sequence=_mean_of([cost.get("macs_per_sequence") for cost in costs]),
        cache_bytes_per_token=_mean_of([cost.get("cache_bytes_per_token") for cost in costs]),
    )


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None
