"""Planned contrasts: pairs of variants that a study compares directly, besides the baseline.

Pairs, intervals and verdicts are those of every other difference (``comparisons``); the contrasts
are a family of their own. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from qkvary.studies.results.answers import write_contrast
from qkvary.studies.results.comparisons import Level, decide
from qkvary.studies.results.summary import Contrast, ContrastRow, CostRow, Difference, ResultTable
from qkvary.studies.results.table_plans import Material, Plan, name_in
from qkvary.studies.study import Crossing


def build_contrasts(
    material: Material, plans: Sequence[Plan], tables: Sequence[ResultTable], level: Level
) -> tuple[Contrast, ...]:
    """Compare every planned pair in every table that has both, and pairs over settings once.

    All contrasts in all averages and tasks form one family of comparisons, those in the single
    settings another.

    Args:
        material: The selected runs and the planned pairs.
        plans: The tables of the study.
        tables: The same tables, filled.
        level: Confidence and power.
    """
    differences: dict[tuple[str, str, str], Difference] = {}
    crossed = {one: _plans_of(one, plans) for one in material.crossings}
    for details in (False, True):
        pairings = {
            (plan.name, variant, reference): material.pair_metric(plan, variant, reference)
            for plan in plans
            if (plan.kind == "setting") == details
            for variant, reference in material.contrasts
            if {variant, reference} <= set(plan.variants)
        }
        pairings |= {
            (plan.name, *_names(one)): material.pair_crossing(plan, other, one)
            for one, (plan, other) in crossed.items()
            if (plan.kind == "setting") == details
        }
        differences |= decide(pairings, level)
    by_name = {table.name: table for table in tables}
    same = [
        _contrast(
            pair,
            [(table, found) for table in tables if (found := differences.get((table.name, *pair)))],
            [
                (table.row(pair[0]).costs, table.row(pair[1]).costs)
                for plan, table in zip(plans, tables, strict=True)
                if table.kind == "task" and set(pair) <= set(plan.variants)
            ],
        )
        for pair in material.contrasts
    ]
    over = [
        _contrast(
            _names(one),
            [(by_name[plan.name], differences[plan.name, *_names(one)])],
            [
                (
                    by_name[plan.name].row(one.variant).costs,
                    by_name[other.name].row(one.reference).costs,
                )
            ],
        )
        for one, (plan, other) in crossed.items()
    ]
    return (*same, *over)


def _names(crossing: Crossing) -> tuple[str, str]:
    return (
        name_in(crossing.variant, crossing.setting),
        name_in(crossing.reference, crossing.reference_setting),
    )


def _plans_of(crossing: Crossing, plans: Sequence[Plan]) -> tuple[Plan, Plan]:
    """The smallest table of each setting: its own, where it has one."""
    ours, theirs = (
        min((plan for plan in plans if name in plan.settings), key=lambda plan: len(plan.settings))
        for name in (crossing.setting, crossing.reference_setting)
    )
    return ours, theirs


def contrast_family(contrasts: Sequence[Contrast]) -> int:
    """Return how many comparisons the contrasts make in averages and tasks together."""
    return sum(row.kind != "setting" for contrast in contrasts for row in contrast.rows)


def _contrast(
    names: tuple[str, str],
    found: Sequence[tuple[ResultTable, Difference]],
    costs: Sequence[tuple[CostRow | None, CostRow | None]],
) -> Contrast:
    variant, reference = names
    rows = tuple(
        ContrastRow(
            table=table.name,
            kind=table.kind,
            metric=table.metric,
            higher_is_better=table.higher_is_better,
            difference=difference,
            sentence=f"{variant} against {reference}: {difference.sentence}",
        )
        for table, difference in found
    )
    answer = write_contrast(variant, reference, rows, costs)
    return Contrast(variant=variant, reference=reference, answer=answer, rows=rows)
