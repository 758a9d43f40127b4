"""Planned contrasts: pairs of variants that a study compares directly. Never imports torch.

Differences and verdicts are computed as in ``comparisons``; the contrasts form a separate family.
"""

from collections.abc import Sequence

from qkvary.studies.results.answers import write_contrast
from qkvary.studies.results.comparisons import Level, compare_family
from qkvary.studies.results.summary import Contrast, ContrastRow, CostRow, Difference, ResultTable
from qkvary.studies.results.table_specs import TableInputs, TableSpec, name_in
from qkvary.studies.study import CrossSettingContrast


def build_contrasts(
    inputs: TableInputs, specs: Sequence[TableSpec], tables: Sequence[ResultTable], level: Level
) -> tuple[Contrast, ...]:
    """Compare every planned pair in every table that has both, and cross-setting pairs once.

    Contrasts in averages and tasks form one family of comparisons, those in single settings
    another.

    Args:
        inputs: The selected runs and the planned contrasts.
        specs: The specifications of the tables.
        tables: The tables.
        level: Confidence and power.
    """
    differences: dict[tuple[str, str, str], Difference] = {}
    across = {one: _smallest_specs(one, specs) for one in inputs.cross_setting_contrasts}
    for details in (False, True):
        pairings = {
            (spec.name, variant, reference): inputs.pair_metric(spec, variant, reference)
            for spec in specs
            if (spec.kind == "setting") == details
            for variant, reference in inputs.contrasts
            if {variant, reference} <= set(spec.variants)
        }
        pairings |= {
            (spec.name, *_names(one)): inputs.pair_across_settings(spec, other, one)
            for one, (spec, other) in across.items()
            if (spec.kind == "setting") == details
        }
        differences |= compare_family(pairings, level)
    by_name = {table.name: table for table in tables}
    same = [
        _contrast(
            pair,
            [(table, found) for table in tables if (found := differences.get((table.name, *pair)))],
            [
                (table.row(pair[0]).costs, table.row(pair[1]).costs)
                for spec, table in zip(specs, tables, strict=True)
                if table.kind == "task" and set(pair) <= set(spec.variants)
            ],
        )
        for pair in inputs.contrasts
    ]
    over = [
        _contrast(
            _names(one),
            [(by_name[spec.name], differences[spec.name, *_names(one)])],
            [
                (
                    by_name[spec.name].row(one.variant).costs,
                    by_name[other.name].row(one.reference).costs,
                )
            ],
        )
        for one, (spec, other) in across.items()
    ]
    return (*same, *over)


def _names(contrast: CrossSettingContrast) -> tuple[str, str]:
    return (
        name_in(contrast.variant, contrast.setting),
        name_in(contrast.reference, contrast.reference_setting),
    )


def _smallest_specs(
    contrast: CrossSettingContrast, specs: Sequence[TableSpec]
) -> tuple[TableSpec, TableSpec]:
    """Return the smallest table of each setting."""
    ours, theirs = (
        min((spec for spec in specs if name in spec.settings), key=lambda spec: len(spec.settings))
        for name in (contrast.setting, contrast.reference_setting)
    )
    return ours, theirs


def contrast_family(contrasts: Sequence[Contrast]) -> int:
    """Return the number of comparisons that the contrasts make in averages and tasks."""
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
            metric_title=table.metric_title,
            higher_is_better=table.higher_is_better,
            difference=difference,
            sentence=f"{variant} against {reference}: {difference.sentence}",
        )
        for table, difference in found
    )
    answer = write_contrast(variant, reference, rows, costs)
    return Contrast(variant=variant, reference=reference, answer=answer, rows=rows)
