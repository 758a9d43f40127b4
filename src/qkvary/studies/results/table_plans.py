"""Which result tables a study has, and the runs behind each. Never imports torch.

One table for every task over its settings, one for every setting where a task has several, and one
average for every group of tasks with the same metric. Settings that name a table of their own stand
in that one, and are in no average.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from qkvary.arch.labels import format_label, parse_variant
from qkvary.studies.results.comparisons import Pairing, Values, pair_up
from qkvary.studies.results.observations import Observation
from qkvary.studies.results.statistics import restricted_steps
from qkvary.studies.results.summary import TableKind
from qkvary.studies.results.verdicts import Scale, steps_scale
from qkvary.studies.study import Crossing, Setting, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A table before it is filled."""

    name: str
    kind: TableKind
    tasks: tuple[str, ...]
    settings: tuple[str, ...]
    variants: tuple[str, ...]
    """Its rows."""
    metric: str
    higher_is_better: bool
    threshold: float | None
    """Where "solved" means the same in all settings of one task; None elsewhere."""
    horizon: int
    """Steps of training; only read where there is a threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What all tables of a study are made from."""

    variants: tuple[str, ...]
    baseline: str
    contrasts: tuple[tuple[str, str], ...]
    """Planned pairs of a variant and its reference."""
    crossings: tuple[Crossing, ...]
    """Planned pairs over settings."""
    seeds: tuple[int, ...]
    tasks: Mapping[str, str]
    selected: Mapping[tuple[str, str], Sequence[Observation]]
    """The runs behind the tables, by variant and setting."""

    def runs(self, variant: str, plan: Plan) -> list[Observation]:
        """The runs of one variant in the settings of one table."""
        return [
            run for setting in plan.settings for run in self.selected.get((variant, setting), ())
        ]

    def values(self, variant: str, plan: Plan) -> Values:
        """The finite results of one variant in one table."""
        return {
            (run.row.setting, run.row.seed): value
            for run in self.runs(variant, plan)
            if (value := run.value) is not None
        }

    def steps(self, variant: str, plan: Plan) -> dict[tuple[str, int], int | None]:
        """Steps to solve of the runs that ended by themselves; None where a run did not solve."""
        return {
            (run.row.setting, run.row.seed): run.row.steps_to_solve
            for run in self.runs(variant, plan)
            if run.row.state in {"done", "diverged"}
        }

    def restricted(self, variant: str, plan: Plan) -> dict[tuple[str, int], float]:
        """Steps to solve, cut off at the horizon."""
        steps = self.steps(variant, plan)
        return dict(zip(steps, restricted_steps(list(steps.values()), plan.horizon), strict=True))

    def pair_metric(self, plan: Plan, ours: str, other: str) -> Pairing:
        """Pair the headline metric of two variants in one table."""
        theirs = self.values(other, plan)
        return self._pair(plan, self.values(ours, plan), other, theirs, _scale_of(plan))

    def pair_crossing(self, plan: Plan, other: Plan, crossing: Crossing) -> Pairing:
        """Pair two networks of different settings by seed.

        Args:
            plan: A table of the first one's setting.
            other: A table of the other's.
            crossing: The two.
        """
        ours, theirs = (
            {
                (crossing.setting, seed): value
                for (found, seed), value in self.values(label, there).items()
                if found == name
            }
            for label, there, name in (
                (crossing.variant, plan, crossing.setting),
                (crossing.reference, other, crossing.reference_setting),
            )
        )
        return pair_up(
            ours,
            theirs,
            baseline_name=name_in(crossing.reference, crossing.reference_setting),
            tasks=self.tasks,
            settings=(crossing.setting,),
            seeds=self.seeds,
            scale=_scale_of(plan),
        )

    def pair_steps(self, plan: Plan, ours: str, other: str) -> Pairing:
        """Pair the restricted steps to solve of two variants in one table."""
        theirs = self.restricted(other, plan)
        scale = steps_scale(plan.horizon)
        return self._pair(plan, self.restricted(ours, plan), other, theirs, scale)

    def _pair(self, plan: Plan, ours: Values, other: str, theirs: Values, scale: Scale) -> Pairing:
        return pair_up(
            ours,
            theirs,
            baseline_name=other,
            tasks=self.tasks,
            settings=plan.settings,
            seeds=self.seeds,
            scale=scale,
        )


def _scale_of(plan: Plan) -> Scale:
    limit = 1.0 if plan.metric.endswith("accuracy") else None
    return Scale(higher_is_better=plan.higher_is_better, limit=limit)


def name_in(variant: str, setting: str) -> str:
    """What a network of one setting is called beside one of another."""
    return f"{variant} ({setting})"


def gather(study: Study, observations: Sequence[Observation]) -> Material:
    """Sort the selected runs of a study by variant."""
    selected: dict[tuple[str, str], list[Observation]] = {}
    for run in observations:
        if run.row.selected:
            selected.setdefault((run.row.variant, run.row.setting), []).append(run)
    return Material(
        variants=tuple(format_label(parse_variant(label)) for label in study.variants),
        baseline=format_label(parse_variant(study.baseline)),
        contrasts=tuple(
            (format_label(parse_variant(variant)), format_label(parse_variant(reference)))
            for variant, reference in study.pairs
        ),
        crossings=tuple(
            replace(
                one,
                variant=format_label(parse_variant(one.variant)),
                reference=format_label(parse_variant(one.reference)),
            )
            for one in study.crossings
        ),
        seeds=study.seeds,
        tasks={setting.name: setting.task.name for setting in study.settings},
        selected=selected,
    )


def plan_tables(study: Study, observations: Sequence[Observation]) -> tuple[Plan, ...]:
    """List the tables of a study: averages, then tasks, then settings."""
    by_task: dict[str, list[str]] = {}
    apart: dict[str, list[Setting]] = {}
    for setting in study.settings:
        if setting.table is None:
            by_task.setdefault(setting.task.name, []).append(setting.name)
        else:
            apart.setdefault(setting.table, []).append(setting)
    tasks = [
        _plan(study, observations, task, "task", (task,), tuple(settings))
        for task, settings in by_task.items()
    ]
    own = [
        _plan(
            study,
            observations,
            _apart_from(name, by_task),
            "task",
            tuple(dict.fromkeys(setting.task.name for setting in members)),
            tuple(setting.name for setting in members),
        )
        for name, members in apart.items()
    ]
    settings = [
        _plan(
            study,
            observations,
            f"setting {name}" if name in by_task or name in apart else name,
            "setting",
            (task,),
            (name,),
        )
        for task, names in [
            *by_task.items(),
            *((group[0].task.name, [one.name for one in group]) for group in apart.values()),
        ]
        if len(names) > 1
        for name in names
    ]
    groups: dict[tuple[str, bool], list[Plan]] = {}
    for plan in tasks:
        groups.setdefault((plan.metric, plan.higher_is_better), []).append(plan)
    averages = [
        _plan(
            study,
            observations,
            "average of " + ", ".join(plan.name for plan in group),
            "average",
            tuple(plan.name for plan in group),
            tuple(name for plan in group for name in plan.settings),
        )
        for (metric, _), group in groups.items()
        if metric and len(group) > 1
    ]
    return (*averages, *tasks, *own, *settings)


def _apart_from(name: str, tasks: Collection[str]) -> str:
    return f"table {name}" if name in tasks else name


def _plan(
    study: Study,
    observations: Sequence[Observation],
    name: str,
    kind: TableKind,
    tasks: tuple[str, ...],
    settings: tuple[str, ...],
) -> Plan:
    runs = [run for run in observations if run.row.metric and run.row.setting in settings]
    members = [setting for setting in study.settings if setting.name in settings]
    training = [setting.training for setting in members]
    thresholds = {one.solve_threshold for one in training}
    horizons = {one.steps for one in training}
    same = kind != "average" and len(thresholds) == 1 and len(horizons) == 1
    return Plan(
        name=name,
        kind=kind,
        tasks=tasks,
        settings=settings,
        variants=study.variants_of(members[0]),
        metric=(runs[0].row.metric or "") if runs else "",
        higher_is_better=all(run.record.higher_is_better for run in runs[:1] if run.record),
        threshold=next(iter(thresholds)) if same else None,
        horizon=max(horizons),
    )
