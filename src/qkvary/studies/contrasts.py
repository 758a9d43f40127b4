"""Planned contrasts: pairs of variants that a study compares directly, besides the baseline.

Pairs, intervals and verdicts are those of every other difference (``comparisons``); the contrasts
are a family of their own. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from qkvary.studies.answers import write_contrast
from qkvary.studies.comparisons import Level, decide
from qkvary.studies.summary import Contrast, ContrastRow, Difference, ResultTable
from qkvary.studies.table_plans import Material, Plan


def build_contrasts(
    material: Material, plans: Sequence[Plan], tables: Sequence[ResultTable], level: Level
) -> tuple[Contrast, ...]:
    """Compare every planned pair in every table.

    All contrasts in all averages and tasks form one family of comparisons, those in the single
    settings another.

    Args:
        material: The selected runs and the planned pairs.
        plans: The tables of the study.
        tables: The same tables, filled.
        level: Confidence, correction and power.
    """
    differences: dict[tuple[str, str, str], Difference] = {}
    for details in (False, True):
        pairings = {
            (plan.name, variant, reference): material.pair_metric(plan, variant, reference)
            for plan in plans
            if (plan.kind == "setting") == details
            for variant, reference in material.contrasts
        }
        differences |= decide(pairings, level)
    return tuple(
        _contrast(
            variant,
            reference,
            tables,
            [differences[table.name, variant, reference] for table in tables],
        )
        for variant, reference in material.contrasts
    )


def contrast_family(contrasts: Sequence[Contrast]) -> int:
    """Return how many comparisons the contrasts make in averages and tasks together."""
    return sum(row.kind != "setting" for contrast in contrasts for row in contrast.rows)


def _contrast(
    variant: str,
    reference: str,
    tables: Sequence[ResultTable],
    differences: Sequence[Difference],
) -> Contrast:
    rows = tuple(
        ContrastRow(
            table=table.name,
            kind=table.kind,
            metric=table.metric,
            higher_is_better=table.higher_is_better,
            difference=difference,
            sentence=f"{variant} against {reference}: {difference.sentence}",
        )
        for table, difference in zip(tables, differences, strict=True)
    )
    answer = write_contrast(variant, reference, rows, tables)
    return Contrast(variant=variant, reference=reference, answer=answer, rows=rows)
