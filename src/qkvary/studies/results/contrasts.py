"""Planned contrasts: pairs of variants that a study compares directly. Never imports torch.

Differences and verdicts are computed as in ``comparisons``; the contrasts form a separate family.
"""

from collections.abc import Sequence

from qkvary.studies.results.answers import write_contrast
from qkvary.studies.results.comparisons import Pairing, compare_family
from qkvary.studies.results.summary import Contrast, ContrastRow, CostRow, Difference, ResultTable
from qkvary.studies.results.table_inputs import TableInputs, name_in

_Costs = tuple[CostRow | None, CostRow | None]


def build_contrasts(inputs: TableInputs, tables: Sequence[ResultTable]) -> tuple[Contrast, ...]:
    """Compare every planned pair in every table that has both, and cross-setting pairs once.

    Contrasts in averages and tasks form one family of comparisons, those in single settings
    another.
    """
    by_name = {table.name: table for table in tables}
    planned: list[tuple[tuple[str, str], dict[str, Pairing], list[_Costs]]] = []
    for pair in inputs.study.pairs:
        variant, reference = pair
        both = [table for table in tables if set(pair) <= {row.variant for row in table.rows}]
        pairings = {table.name: inputs.pair_metric(table, variant, reference) for table in both}
        costs = [
            (table.row(variant).costs, table.row(reference).costs)
            for table in both
            if table.kind == "task"
        ]
        planned.append((pair, pairings, costs))
    for one in inputs.study.cross_setting_contrasts:
        ours, theirs = (_smallest(tables, setting) for _, setting in one.sides)
        names = (name_in(*one.sides[0]), name_in(*one.sides[1]))
        costs = [(ours.row(one.variant).costs, theirs.row(one.reference).costs)]
        planned.append((names, {ours.name: inputs.pair_across_settings(ours, one)}, costs))
    differences: dict[tuple[tuple[str, str], str], Difference] = {}
    for details in (False, True):
        family = {
            (names, table): pairing
            for names, pairings, _ in planned
            for table, pairing in pairings.items()
            if (by_name[table].kind == "setting") == details
        }
        differences |= compare_family(family)
    return tuple(
        _contrast(names, [(by_name[name], differences[names, name]) for name in pairings], costs)
        for names, pairings, costs in planned
    )


def _smallest(tables: Sequence[ResultTable], setting: str) -> ResultTable:
    found = (table for table in tables if setting in table.settings)
    return min(found, key=lambda table: len(table.settings))


def contrast_family(contrasts: Sequence[Contrast]) -> int:
    """Return the number of comparisons that the contrasts make in averages and tasks."""
    return sum(row.kind != "setting" for contrast in contrasts for row in contrast.rows)


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
