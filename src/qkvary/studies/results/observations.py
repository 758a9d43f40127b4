"""Pairs the planned runs of a study with their records, and chooses learning rates.

Every planned run is included: a run without a record is missing or damaged, and a run with a
non-finite result has diverged. Never imports torch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import get_args

from qkvary.studies.records import Record
from qkvary.studies.results.statistics import mean
from qkvary.studies.results.summary import Counts, LearningRateRow, RunRow, RunState
from qkvary.studies.study import Cell, Setting, Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A planned run and its record."""

    row: RunRow
    record: Record | None

    @property
    def validation(self) -> float | None:
        """The task's own metric on the validation split. It decides on the learning rate.

        A setting's table may use a metric that exists only for the test split.
        """
        if self.row.state != "done" or self.record is None:
            return None
        name = self.record.metric.removeprefix("test_").removeprefix("validation_")
        return dict(self.row.metrics).get(f"validation_{name}")


def observe(
    study: Study, records: Iterable[Record], damaged: Mapping[str, str] = MappingProxyType({})
) -> tuple[Observation, ...]:
    """Return every planned run with its record; records of other studies are ignored."""
    by_key = {record.run_key: record for record in records}
    settings = {setting.name: setting for setting in study.settings}
    return tuple(
        _observe(cell, settings[cell.setting], by_key.get(key), damaged.get(key))
        for cell in study.cells()
        for key in (cell.run_key,)
    )


def count(runs: Iterable[RunRow]) -> Counts:
    """Count the planned runs in each state. A run that several settings share counts once."""
    states = [row.state for row in {row.run_key: row for row in runs}.values()]
    return Counts(
        planned=len(states), **{state: states.count(state) for state in get_args(RunState)}
    )


def choose_learning_rates(
    study: Study, observations: Sequence[Observation]
) -> tuple[tuple[Observation, ...], tuple[LearningRateRow, ...]]:
    """Select one learning rate's runs for each setting and variant, and list all learning rates.

    The chosen rate has the best mean of the task's own validation metric among the rates with the
    fewest diverged runs; the test split is not used. If no run has finished, no rate is chosen, and
    the runs of the rate with the fewest missing runs are selected.
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
                    counts=count(run.row for run in runs),
                    validation_mean=mean(_validations(runs)),
                    chosen=rate == chosen,
                    at_the_edge=rate == chosen
                    and len(rates) > 1
                    and rate in {min(rates), max(rates)},
                )
            )
    return tuple(marked), tuple(table)


def _choose(rates: Mapping[float, Sequence[Observation]]) -> tuple[float | None, float]:
    """Return the chosen learning rate, and the learning rate whose runs appear in the tables.

    Both are the same if a run has a validation result. Otherwise no rate is chosen (None).
    """
    counts = {rate: count(run.row for run in runs) for rate, runs in rates.items()}
    scores = {rate: mean(values) for rate, runs in rates.items() if (values := _validations(runs))}
    if not scores:
        return None, min(rates, key=lambda rate: counts[rate].unfinished)
    fewest = min(counts[rate].diverged for rate in scores)
    records = [run.record for runs in rates.values() for run in runs]
    higher_is_better = any(one.higher_is_better for one in records if one is not None)
    best = max(
        (rate for rate in scores if counts[rate].diverged == fewest),
        key=lambda rate: (scores[rate] or 0.0) * (1.0 if higher_is_better else -1.0),
    )
    return best, best


def _validations(runs: Sequence[Observation]) -> list[float]:
    return [value for run in runs if (value := run.validation) is not None]


def _observe(
    cell: Cell, setting: Setting, record: Record | None, damage: str | None
) -> Observation:
    metrics = {} if record is None else _finite(record.metrics)
    timing = {} if record is None else _finite(record.timing)
    steps = metrics.get("steps_to_solve")
    metric = None
    if record is not None:
        metric = record.metric if setting.metric is None else f"test_{setting.metric}"
    value = metrics.get(metric or "")
    state: RunState = "missing" if damage is None else "damaged"
    message = damage or ""
    if record is not None:
        state, message = record.status, record.message
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
        run_key=cell.run_key,
        message=message,
        metric=metric,
        value=value if state == "done" else None,
        metrics=tuple(metrics.items()),
        timing=tuple(_speeds(cell, timing)),
        steps_to_solve=None if steps is None else int(steps),
        training_seconds=timing.get("training_seconds"),
        total_seconds=timing.get("total_seconds"),
        selected=True,
        is_tested=setting.task.has_test,
    )
    return Observation(row=row, record=record)


def _speeds(cell: Cell, timing: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    steps = timing.get("steps_per_second")
    if steps:
        yield "tokens_per_second", steps * cell.run.tokens_per_step
    share, most = timing.get("utilization"), timing.get("product_flops_per_second")
    if share is not None and most is not None:
        yield "gigaflops_per_second", share * most / 1e9
        yield "utilization", share


def _finite(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return the values as floats; non-finite ones become None."""
    return {
        name: float(value) if value is not None and math.isfinite(value) else None
        for name, value in figures.items()
    }
