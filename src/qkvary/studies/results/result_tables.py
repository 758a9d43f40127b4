"""Computes the rows of the tables that ``table_inputs`` lists, and planned contrasts. Torch-free.

Differences are corrected in families of comparisons. Differences in averages and tasks form one
family, and differences in single settings form another. Steps to solve are split into two families
in the same way, and so are planned contrasts. This makes six families in all.
"""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qkvary.studies.results.answers import write_contrast
from qkvary.studies.results.comparisons import Pairing, Values, average_over_tasks, compare_family
from qkvary.studies.results.observations import Observation, count
from qkvary.studies.results.statistics import (
    mean,
    median_steps,
    pooled_std,
    population_std,
    sign_test,
    wilson,
)
from qkvary.studies.results.summary import (
    Contrast,
    ContrastRow,
    Difference,
    MeanCosts,
    ResultTable,
    Solving,
    VariantRow,
)
from qkvary.studies.results.table_inputs import TableInputs, name_in

PairwiseDifferences = Mapping[tuple[str, str], Difference]
"""Corrected paired differences, first variant minus second, for ordered pairs of variants."""

Key = TypeVar("Key", bound=Hashable)
_Costs = tuple[MeanCosts | None, MeanCosts | None]


def build_tables(inputs: TableInputs, tables: Sequence[ResultTable]) -> tuple[ResultTable, ...]:
    """Compute the rows of all tables of a study from its selected runs."""
    settings = {setting.name: setting for setting in inputs.study.settings}
    labels = {table.name: inputs.study.variants_of(settings[table.settings[0]]) for table in tables}
    compared = [
        (table, variant)
        for table in tables
        if inputs.baseline in labels[table.name]
        for variant in labels[table.name]
        if variant != inputs.baseline
    ]
    differences = _compare(
        tables,
        {
            (table.name, variant): inputs.pair_metric(table, variant, inputs.baseline)
            for table, variant in compared
        },
    )
    steps = _compare(
        tables,
        {
            (table.name, variant): inputs.pair_steps(table, variant, inputs.baseline, solving[1])
            for table, variant in compared
            if (solving := inputs.solving(table)) is not None
        },
    )
    return tuple(
        replace(
            table,
            rows=tuple(
                _row(
                    inputs,
                    table,
                    variant,
                    differences.get((table.name, variant)),
                    steps.get((table.name, variant)),
                )
                for variant in labels[table.name]
            ),
        )
        for table in tables
    )


def _compare(
    tables: Sequence[ResultTable], pairings: Mapping[tuple[str, Key], Pairing]
) -> dict[tuple[str, Key], Difference]:
    """Compute differences in two families: tables of single settings, and all other tables."""
    details = {table.name for table in tables if table.kind == "setting"}
    families = (
        {key: pairing for key, pairing in pairings.items() if (key[0] in details) == is_detail}
        for is_detail in (False, True)
    )
    return {key: gap for family in families for key, gap in compare_family(family).items()}


def compare_pairwise(inputs: TableInputs, table: ResultTable) -> PairwiseDifferences:
    """Compare all pairs of variants of a table, corrected for the number of pairs."""
    pairs = {
        (one.variant, other.variant): inputs.pair_metric(table, one.variant, other.variant)
        for one, other in itertools.combinations(table.rows, 2)
    }
    forward = compare_family(pairs)
    swapped = {(other, one): inputs.pair_metric(table, other, one) for one, other in pairs}
    return {**forward, **compare_family(swapped)}


def _row(
    inputs: TableInputs,
    table: ResultTable,
    variant: str,
    difference: Difference | None,
    steps: Difference | None,
) -> VariantRow:
    runs = inputs.runs(variant, table)
    groups = _by_setting(inputs.values(variant, table), table.settings)
    means = _means(groups)
    timings = [run.record.timing for run in runs if run.row.state == "done" and run.record]
    return VariantRow(
        variant=variant,
        counts=count(run.row for run in runs),
        mean=average_over_tasks(means, inputs.tasks, table.settings),
        std_seeds=pooled_std(list(groups.values())),
        std_settings=population_std([*means.values()]) if len(means) == len(groups) else None,
        difference=difference,
        solving=_solving(inputs, table, variant, steps),
        training_seconds=mean([one.get("training_seconds", 0.0) for one in timings]),
        steps_per_second=mean([one.get("steps_per_second", 0.0) for one in timings]),
        costs=_costs(runs, table.settings),
        learning_rates=tuple({run.row.setting: run.row.learning_rate for run in runs}.values()),
        utilization=mean([one["utilization"] for one in timings if "utilization" in one]),
    )


def _solving(
    inputs: TableInputs, table: ResultTable, variant: str, difference: Difference | None
) -> Solving | None:
    solving = inputs.solving(table)
    if solving is None:
        return None
    threshold, horizon = solving
    steps = inputs.steps(variant, table)
    solved = sum(value is not None for value in steps.values())
    share = wilson(solved, len(steps))
    ours = inputs.restricted(variant, table, horizon)
    theirs = inputs.restricted(inputs.baseline, table, horizon)
    pairs = [ours[key] - theirs[key] for key in ours if key in theirs]
    return Solving(
        threshold=threshold,
        horizon=horizon,
        runs=len(steps),
        solved=solved,
        proportion_low=share[0] if share else None,
        proportion_high=share[1] if share else None,
        median_steps=median_steps(list(steps.values())),
        restricted_mean_steps=average_over_tasks(
            _means(_by_setting(ours, table.settings)), inputs.tasks, table.settings
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
    """Return the mean of each setting that has a value."""
    return {name: value for name, group in groups.items() if (value := mean(group)) is not None}


def _costs(runs: Sequence[Observation], settings: Sequence[str]) -> MeanCosts | None:
    """Return the costs averaged over the settings of a table."""
    found = {run.row.setting: run.record.costs for run in runs if run.record and run.record.costs}
    costs = [found[setting] for setting in settings if setting in found]
    if not costs or len(costs) < len(settings):
        return None
    parts = list(costs[0].get("parameters", {}))
    return MeanCosts(
        parameters=tuple(
            (part, mean([float(cost["parameters"].get(part, 0)) for cost in costs]) or 0.0)
            for part in parts
        ),
        macs_per_token=_mean_of([cost.get("macs_per_token") for cost in costs]),
        macs_per_sequence=_mean_of([cost.get("macs_per_sequence") for cost in costs]),
        cache_bytes_per_token=_mean_of([_cache_per_token(cost) for cost in costs]),
    )


def _cache_per_token(cost: Mapping[str, Any]) -> float | None:
    """Return the cache bytes per token; a state of fixed size is divided by the sequence length."""
    grows, whole = cost.get("cache_bytes_per_token"), cost.get("cache_bytes_per_sequence")
    return whole / cost["length"] if grows == 0 and whole else grows


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return mean(known) if len(known) == len(values) else None


def build_contrasts(inputs: TableInputs, tables: Sequence[ResultTable]) -> tuple[Contrast, ...]:
    """Compare each planned pair of variants in every table that contains both variants.

    A pair across settings is compared only once.
    """
    pairings: dict[tuple[str, tuple[str, str]], Pairing] = {}
    planned: list[tuple[tuple[str, str], list[_Costs]]] = []
    for pair in inputs.study.pairs:
        variant, reference = pair
        both = [table for table in tables if set(pair) <= {row.variant for row in table.rows}]
        pairings |= {(one.name, pair): inputs.pair_metric(one, variant, reference) for one in both}
        costs = [
            (table.row(variant).costs, table.row(reference).costs)
            for table in both
            if table.kind == "task"
        ]
        planned.append((pair, costs))
    for one in inputs.study.cross_setting_contrasts:
        ours, theirs = (
            min(
                (table for table in tables if setting in table.settings),
                key=lambda table: len(table.settings),
            )
            for _, setting in one.sides
        )
        names = (name_in(*one.sides[0]), name_in(*one.sides[1]))
        pairings[ours.name, names] = inputs.pair_across_settings(ours, one)
        planned.append((names, [(ours.row(one.variant).costs, theirs.row(one.reference).costs)]))
    differences = _compare(tables, pairings)
    by_name = {table.name: table for table in tables}
    return tuple(
        _contrast(
            names,
            [(by_name[table], gap) for (table, pair), gap in differences.items() if pair == names],
            costs,
        )
        for names, costs in planned
    )


def _contrast(
    names: tuple[str, str],
    found: Sequence[tuple[ResultTable, Difference]],
    costs: Sequence[_Costs],
) -> Contrast:
    variant, reference = names
    rows = tuple(
        ContrastRow(
            table=table.name,
            kind=table.kind,
            metric=table.metric,
            metric_title=table.metric_title,
            higher_is_better=table.higher_is_better,
            difference=difference,
            sentence=f"{variant} against {reference}: {difference.sentence}",
        )
        for table, difference in found
    )
    answer = write_contrast(variant, reference, rows, costs)
    return Contrast(variant=variant, reference=reference, answer=answer, rows=rows)
