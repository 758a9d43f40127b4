"""Specifies the result tables of a study, and collects the runs of each. Never imports torch.

There is one table per task, one per setting if a task has several settings, and one average per
group of tasks with the same metric. Settings that name a separate table appear only in that table,
not in an average.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from qkvary.arch.labels import canonical_label
from qkvary.studies.results.comparisons import Pairing, Values, average_over_tasks, pair_up
from qkvary.studies.results.observations import Observation
from qkvary.studies.results.statistics import restricted_steps
from qkvary.studies.results.summary import ResultTable, TableKind
from qkvary.studies.results.verdicts import DifferenceWording, is_share
from qkvary.studies.study import CrossSettingContrast, Setting, Study
from qkvary.tasks.config_parts import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInputs:
    """The runs and comparisons from which all tables of a study are computed."""

    study: Study
    baseline: str
    """Canonical label of the baseline."""
    tasks: Mapping[str, str]
    selected: Mapping[tuple[str, str], Sequence[Observation]]
    """The selected runs, by variant and setting."""

    def runs(self, variant: str, table: ResultTable) -> list[Observation]:
        """Return the runs of a variant in a table."""
        return [
            run for setting in table.settings for run in self.selected.get((variant, setting), ())
        ]

    def values(self, variant: str, table: ResultTable) -> Values:
        """Return the finite results of a variant in a table."""
        return {
            (run.row.setting, run.row.seed): value
            for run in self.runs(variant, table)
            if (value := run.row.value) is not None
        }

    def steps(self, variant: str, table: ResultTable) -> dict[tuple[str, int], int | None]:
        """Return the number of steps after which each finished or diverged run solved the task.

        The value is None for a run that did not solve the task.
        """
        return {
            (run.row.setting, run.row.seed): run.row.steps_to_solve
            for run in self.runs(variant, table)
            if run.row.state in {"done", "diverged"}
        }

    def solving(self, table: ResultTable) -> tuple[float, int] | None:
        """Return the threshold and training steps that all settings of a table share, or None."""
        trainings = [one.training for one in self.study.settings if one.name in table.settings]
        found = {(one.solve_threshold, one.steps) for one in trainings}
        threshold, steps = found.pop()
        is_shared = table.kind != "average" and not found
        return (threshold, steps) if is_shared and threshold is not None else None

    def restricted(
        self, variant: str, table: ResultTable, horizon: int
    ) -> dict[tuple[str, int], float]:
        """Return each run's number of steps until the task was solved, at most the horizon."""
        steps = self.steps(variant, table)
        return dict(zip(steps, restricted_steps(list(steps.values()), horizon), strict=True))

    def pair_metric(self, table: ResultTable, ours: str, other: str) -> Pairing:
        """Pair the headline metric of two variants in one table."""
        both = self.values(ours, table), self.values(other, table)
        return self._pair(*both, other, table.settings, _wording_of(table))

    def pair_across_settings(self, table: ResultTable, contrast: CrossSettingContrast) -> Pairing:
        """Pair two networks of different settings by seed."""
        ours, theirs = (
            {
                (contrast.setting, run.row.seed): value
                for run in self.selected.get(side, ())
                if (value := run.row.value) is not None
            }
            for side in contrast.sides
        )
        name = name_in(contrast.reference, contrast.reference_setting)
        return self._pair(ours, theirs, name, (contrast.setting,), _wording_of(table))

    def pair_steps(self, table: ResultTable, ours: str, other: str, horizon: int) -> Pairing:
        """Pair the steps to solve of two variants in one table, limited to ``horizon``."""
        found, theirs = (self.restricted(label, table, horizon) for label in (ours, other))
        wording = DifferenceWording(
            higher_is_better=False, more="later", less="sooner", unit=" steps", limit=float(horizon)
        )
        return self._pair(found, theirs, other, table.settings, wording)

    def _pair(
        self,
        ours: Values,
        theirs: Values,
        name: str,
        settings: Sequence[str],
        wording: DifferenceWording,
    ) -> Pairing:
        return pair_up(
            ours,
            theirs,
            baseline_name=name,
            tasks=self.tasks,
            settings=settings,
            seeds=self.study.seeds,
            wording=wording,
        )


def _wording_of(table: ResultTable) -> DifferenceWording:
    limit = 1.0 if is_share(table.metric) else None
    return DifferenceWording(higher_is_better=table.higher_is_better, limit=limit)


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
        study=study,
        baseline=canonical_label(study.baseline),
        tasks={setting.name: setting.task.name for setting in study.settings},
        selected=selected,
    )


def specify_tables(study: Study, observations: Sequence[Observation]) -> tuple[ResultTable, ...]:
    """Return a study's result tables, still without rows: averages, then tasks, then settings."""
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
    groups: dict[tuple[str, bool], list[ResultTable]] = {}
    for table in tasks:
        groups.setdefault((table.metric, table.higher_is_better), []).append(table)
    averages = [
        specify(
            "average of " + ", ".join(table.name for table in group),
            "average",
            [one for table in group for one in by_task[table.name]],
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
) -> ResultTable:
    settings = tuple(setting.name for setting in members)
    runs = [run for run in observations if run.row.metric and run.row.setting in settings]
    is_tested = {setting.task.has_test for setting in members}
    metric = (runs[0].row.metric or "") if runs else ""
    return ResultTable(
        name=name,
        kind=kind,
        tasks=tuple(dict.fromkeys(setting.task.name for setting in members)),
        settings=settings,
        metric=metric,
        higher_is_better=all(run.record.higher_is_better for run in runs[:1] if run.record),
        rows=(),
        notes=tuple(
            dict.fromkeys(one.note for one in study.settings if one.note and one.name in settings)
        ),
        is_tested=is_tested.pop() if len(is_tested) == 1 else None,
        scale=_average_scale(members, metric),
        is_language=any(setting.task.is_language for setting in members),
    )


def _average_scale(members: Sequence[Setting], metric: str) -> Scale | None:
    """Return the score of a guess and the score of a perfect network.

    Both are averages over the settings, computed like the averages in the table's rows.
    """
    scales = {one.name: one.task.scale(one.network, metric) for one in members}
    tasks = {one.name: one.task.name for one in members}
    guess, perfect = (
        average_over_tasks(
            {name: scale[end] for name, scale in scales.items() if scale}, tasks, [*scales]
        )
        for end in range(2)
    )
    return None if guess is None or perfect is None else Scale(guess, perfect)
