"""Lists the result tables of a study and the runs of each. Never imports torch.

There is one table per task, one per setting if a task has several, and one average per group of
tasks with the same metric. Settings that name a table of their own appear in that table and in no
average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from qkvary.arch.labels import canonical_label
from qkvary.studies.results.comparisons import Pairing, Values, pair_up
from qkvary.studies.results.observations import Observation
from qkvary.studies.results.statistics import restricted_steps
from qkvary.studies.results.summary import TableKind
from qkvary.studies.results.verdicts import DifferenceWording, steps_wording
from qkvary.studies.study import CrossSettingContrast, Setting, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """The specification of a result table."""

    name: str
    kind: TableKind
    tasks: tuple[str, ...]
    settings: tuple[str, ...]
    variants: tuple[str, ...]
    """Its rows."""
    metric: str
    higher_is_better: bool
    threshold: float | None
    """Threshold of "solved", if it is the same in all settings; else None."""
    horizon: int
    """Training steps; only used with a threshold."""
    notes: tuple[str, ...] = ()
    """The notes of its settings, each once."""
    is_tested: bool | None = True
    """Whether the data of its settings have a test split; None if only some have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInputs:
    """The runs and comparisons from which all tables of a study are computed."""

    variants: tuple[str, ...]
    baseline: str
    contrasts: tuple[tuple[str, str], ...]
    """Planned pairs of a variant and its reference."""
    cross_setting_contrasts: tuple[CrossSettingContrast, ...]
    """Planned pairs across settings."""
    seeds: tuple[int, ...]
    tasks: Mapping[str, str]
    selected: Mapping[tuple[str, str], Sequence[Observation]]
    """The selected runs, by variant and setting."""

    def runs(self, variant: str, spec: TableSpec) -> list[Observation]:
        """Return the runs of a variant in a table."""
        return [
            run for setting in spec.settings for run in self.selected.get((variant, setting), ())
        ]

    def values(self, variant: str, spec: TableSpec) -> Values:
        """Return the finite results of a variant in a table."""
        return {
            (run.row.setting, run.row.seed): value
            for run in self.runs(variant, spec)
            if (value := run.value) is not None
        }

    def steps(self, variant: str, spec: TableSpec) -> dict[tuple[str, int], int | None]:
        """Return the steps to solve of the finished and diverged runs; None for unsolved runs."""
        return {
            (run.row.setting, run.row.seed): run.row.steps_to_solve
            for run in self.runs(variant, spec)
            if run.row.state in {"done", "diverged"}
        }

    def restricted(self, variant: str, spec: TableSpec) -> dict[tuple[str, int], float]:
        """Return the steps to solve, restricted to the horizon."""
        steps = self.steps(variant, spec)
        return dict(zip(steps, restricted_steps(list(steps.values()), spec.horizon), strict=True))

    def pair_metric(self, spec: TableSpec, ours: str, other: str) -> Pairing:
        """Pair the headline metric of two variants in one table."""
        theirs = self.values(other, spec)
        return self._pair(spec, self.values(ours, spec), other, theirs, _wording_of(spec))

    def pair_across_settings(self, spec: TableSpec, contrast: CrossSettingContrast) -> Pairing:
        """Pair two networks of different settings by seed.

        Args:
            spec: A table of the setting of the first.
            contrast: The two networks.
        """
        ours, theirs = (
            {
                (contrast.setting, run.row.seed): value
                for run in self.selected.get(side, ())
                if (value := run.value) is not None
            }
            for side in contrast.sides
        )
        return pair_up(
            ours,
            theirs,
            baseline_name=name_in(contrast.reference, contrast.reference_setting),
            tasks=self.tasks,
            settings=(contrast.setting,),
            seeds=self.seeds,
            wording=_wording_of(spec),
        )

    def pair_steps(self, spec: TableSpec, ours: str, other: str) -> Pairing:
        """Pair the restricted steps to solve of two variants in one table."""
        theirs = self.restricted(other, spec)
        wording = steps_wording(spec.horizon)
        return self._pair(spec, self.restricted(ours, spec), other, theirs, wording)

    def _pair(
        self, spec: TableSpec, ours: Values, other: str, theirs: Values, wording: DifferenceWording
    ) -> Pairing:
        return pair_up(
            ours,
            theirs,
            baseline_name=other,
            tasks=self.tasks,
            settings=spec.settings,
            seeds=self.seeds,
            wording=wording,
        )


def _wording_of(spec: TableSpec) -> DifferenceWording:
    limit = 1.0 if spec.metric.endswith("accuracy") else None
    return DifferenceWording(higher_is_better=spec.higher_is_better, limit=limit)


def name_in(variant: str, setting: str) -> str:
    """Return the name of a variant in a contrast across settings."""
    return f"{variant} ({setting})"


def collect_inputs(study: Study, observations: Sequence[Observation]) -> TableInputs:
    """Group the selected runs of a study by variant and setting."""
    selected: dict[tuple[str, str], list[Observation]] = {}
    for run in observations:
        if run.row.selected:
            selected.setdefault((run.row.variant, run.row.setting), []).append(run)
    return TableInputs(
        variants=study.labels,
        baseline=canonical_label(study.baseline),
        contrasts=study.pairs,
        cross_setting_contrasts=study.cross_setting_contrasts,
        seeds=study.seeds,
        tasks={setting.name: setting.task.name for setting in study.settings},
        selected=selected,
    )


def specify_tables(study: Study, observations: Sequence[Observation]) -> tuple[TableSpec, ...]:
    """List the tables of a study: averages, then tasks, then settings."""
    by_task: dict[str, list[Setting]] = {}
    apart: dict[str, list[Setting]] = {}
    for setting in study.settings:
        if setting.table is None:
            by_task.setdefault(setting.task.name, []).append(setting)
        else:
            apart.setdefault(setting.table, []).append(setting)
    specify = partial(_specify, study, observations)
    tasks = [specify(task, "task", members) for task, members in by_task.items()]
    own = [
        specify(f"table {name}" if name in by_task else name, "task", members)
        for name, members in apart.items()
    ]
    settings = [
        specify(f"setting {name}" if name in by_task or name in apart else name, "setting", [one])
        for members in (*by_task.values(), *apart.values())
        if len(members) > 1
        for one in members
        for name in (one.name,)
    ]
    groups: dict[tuple[str, bool], list[TableSpec]] = {}
    for spec in tasks:
        groups.setdefault((spec.metric, spec.higher_is_better), []).append(spec)
    averages = [
        specify(
            "average of " + ", ".join(spec.name for spec in group),
            "average",
            [one for spec in group for one in by_task[spec.name]],
        )
        for (metric, _), group in groups.items()
        if metric and len(group) > 1
    ]
    return (*averages, *tasks, *own, *settings)


def _specify(
    study: Study,
    observations: Sequence[Observation],
    name: str,
    kind: TableKind,
    members: Sequence[Setting],
) -> TableSpec:
    settings = tuple(setting.name for setting in members)
    runs = [run for run in observations if run.row.metric and run.row.setting in settings]
    thresholds = {setting.training.solve_threshold for setting in members}
    horizons = {setting.training.steps for setting in members}
    is_tested = {setting.task.has_test for setting in members}
    same = kind != "average" and len(thresholds) == 1 and len(horizons) == 1
    return TableSpec(
        name=name,
        kind=kind,
        tasks=tuple(dict.fromkeys(setting.task.name for setting in members)),
        settings=settings,
        variants=study.variants_of(members[0]),
        metric=(runs[0].row.metric or "") if runs else "",
        higher_is_better=all(run.record.higher_is_better for run in runs[:1] if run.record),
        threshold=next(iter(thresholds)) if same else None,
        horizon=max(horizons),
        notes=tuple(
            dict.fromkeys(one.note for one in study.settings if one.note and one.name in settings)
        ),
        is_tested=is_tested.pop() if len(is_tested) == 1 else None,
    )
