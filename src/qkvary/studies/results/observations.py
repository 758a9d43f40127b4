"""Every planned run of a study with what became of it, and the choice of learning rates.

A run that was planned is always in the list: without a record it is missing, with a result that is
not finite it has diverged. Never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qkvary.studies.results.statistics import mean
from qkvary.studies.results.summary import Counts, LearningRateRow, RunRow, RunState
from qkvary.studies.running.records import Record
from qkvary.studies.study import Cell, Setting, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One planned run beside its record."""

    row: RunRow
    record: Record | None

    @property
    def value(self) -> float | None:
        """The headline metric of a finished run."""
        return self.row.value if self.row.state == "done" else None

    @property
    def validation(self) -> float | None:
        """The task's own metric on the validation split, by which a learning rate is chosen.

        The score of a setting's table may be one that only the test finds.
        """
        if self.row.state != "done" or self.record is None:
            return None
        name = self.record.metric.removeprefix("test_").removeprefix("validation_")
        return dict(self.row.metrics).get(f"validation_{name}")


def observe(study: Study, records: Iterable[Record]) -> tuple[Observation, ...]:
    """Set every planned run beside its record; records of other studies are passed over."""
    by_key = {record.run_key: record for record in records}
    settings = {setting.name: setting for setting in study.settings}
    return tuple(
        _observe(cell, settings[cell.setting], key, by_key.get(key))
        for cell in study.cells()
        for key in (cell.run_key,)
    )


def count(observations: Sequence[Observation]) -> Counts:
    """Count what became of planned runs; one that stands in several settings counts once."""
    return count_rows(observation.row for observation in observations)


def count_rows(runs: Iterable[RunRow]) -> Counts:
    """Count rows of runs like their observations."""
    states = [row.state for row in {row.run_key: row for row in runs}.values()]
    return Counts(
        planned=len(states),
        done=states.count("done"),
        failed=states.count("failed"),
        diverged=states.count("diverged"),
        missing=states.count("missing"),
    )


def choose_learning_rates(
    study: Study, observations: Sequence[Observation]
) -> tuple[tuple[Observation, ...], tuple[LearningRateRow, ...]]:
    """Mark the runs that the tables use: for each setting and variant, those of one learning rate.

    The rate with the best mean of the task's own validation metric is chosen, among those with the
    fewest diverged runs; the test split has no say. Where no run has finished, the rate with the
    fewest missing runs stands in so that its counts are shown, and none is called chosen.

    Returns:
        All observations, ``row.selected`` set; and a row for every rate, empty unless the study
        tries several.
    """
    if study.learning_rates is None:
        return tuple(observations), ()
    groups: dict[tuple[str, str], dict[float, list[Observation]]] = {}
    for observation in observations:
        row = observation.row
        rates = groups.setdefault((row.setting, row.variant), {})
        rates.setdefault(row.learning_rate, []).append(observation)
    marked: list[Observation] = []
    table: list[LearningRateRow] = []
    for (setting, variant), rates in groups.items():
        chosen, shown = _choose(rates)
        for rate, runs in rates.items():
            marked += [replace(run, row=replace(run.row, selected=rate == shown)) for run in runs]
            table.append(
                LearningRateRow(
                    setting=setting,
                    variant=variant,
                    learning_rate=rate,
                    counts=count(runs),
                    validation_mean=mean(_validations(runs)),
                    chosen=rate == chosen,
                    at_the_edge=rate == chosen
                    and len(rates) > 1
                    and rate in {min(rates), max(rates)},
                )
            )
    return tuple(marked), tuple(table)


def _choose(rates: Mapping[float, Sequence[Observation]]) -> tuple[float | None, float]:
    """Return the chosen rate, or None; and the rate whose runs the tables show."""
    scores = {rate: mean(values) for rate, runs in rates.items() if (values := _validations(runs))}
    if not scores:
        return None, min(rates, key=lambda rate: count(rates[rate]).missing)
    fewest = min(count(rates[rate]).diverged for rate in scores)
    sign = 1.0 if _higher_is_better(rates) else -1.0
    best = max(
        (rate for rate in scores if count(rates[rate]).diverged == fewest),
        key=lambda rate: sign * (scores[rate] or 0.0),
    )
    return best, best


def _validations(runs: Sequence[Observation]) -> list[float]:
    return [value for run in runs if (value := run.validation) is not None]


def _higher_is_better(rates: Mapping[float, Sequence[Observation]]) -> bool:
    records = [run.record for runs in rates.values() for run in runs]
    return any(record.higher_is_better for record in records if record is not None)


def _observe(cell: Cell, setting: Setting, key: str, record: Record | None) -> Observation:
    state: RunState = "missing" if record is None else record.status
    metric = _metric(setting, record)
    value = None if record is None or metric is None else _finite(record.metrics.get(metric))
    message = "" if record is None else record.message
    if state == "done" and value is None:
        state = "diverged"
        message = message or "the result is not a finite number"
    row = RunRow(
        setting=cell.setting,
        task=setting.task.name,
        variant=cell.variant,
        seed=cell.seed,
        learning_rate=cell.learning_rate,
        state=state,
        run_key=key,
        message=message,
        metric=metric,
        value=value if state == "done" else None,
        metrics=_metrics(record),
        steps_to_solve=_steps(record),
        training_seconds=_timing(record, "training_seconds"),
        total_seconds=_timing(record, "total_seconds"),
        selected=True,
    )
    return Observation(row=row, record=record)


def _metric(setting: Setting, record: Record | None) -> str | None:
    """The score that a setting's table shows: its own, or the one that the record is headed by."""
    if record is None:
        return None
    return record.metric if setting.metric is None else f"test_{setting.metric}"


def _metrics(record: Record | None) -> tuple[tuple[str, float | None], ...]:
    if record is None:
        return ()
    return tuple((name, _finite(value)) for name, value in record.metrics.items())


def _steps(record: Record | None) -> int | None:
    value = None if record is None else _finite(record.metrics.get("steps_to_solve"))
    return None if value is None else int(value)


def _timing(record: Record | None, name: str) -> float | None:
    return None if record is None else _finite(record.timing.get(name))


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
