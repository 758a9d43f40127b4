"""The result of a training: its runs, their networks, and the report that shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qkvary.api.results import Result
from qkvary.api.training_texts import write_texts
from qkvary.reports.study_results import gather_results
from qkvary.reports.training import training_report
from qkvary.studies.results.summary import Summary
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TrainingResult(Result[Summary | None]):
    """The result of a training; ``value`` is the summary of its runs, None of a plan.

    The exit code is 5 if a run diverged, 1 if one failed, else 0.
    """

    study: Study
    """The runs."""
    store: Store
    """The folder of runs."""
    networks: Mapping[str, Path | None] = field(default_factory=dict[str, Path | None])
    """The folders of the trained networks by the titles of their runs, for ``qk.load``."""
    warning: str | None = None
    """A problem of the data; ``None`` if there is none."""
    damage: tuple[str, ...] = ()
    """One sentence per unreadable run."""


def describe_runs(study: Study, store: Store, command: str, warning: str | None) -> TrainingResult:
    """Read the runs of a training from the store.

    Args:
        study: The runs.
        store: Where they are.
        command: What the report says how they were made.
        warning: A problem of the data; ``None`` if there is none.
    """
    results = gather_results(study, store)
    summary = replace(results.summary, commands=(command,))
    records = [store.record(cell.run_key) for cell in study.cells()]
    ends = {record.status for record in records if record is not None}
    return TrainingResult(
        summary,
        training_report(summary, write_texts(study, store), results.attention),
        study=study,
        store=store,
        networks={cell.title: store.network(cell.run_key) for cell in study.cells()},
        exit_code=5 if "diverged" in ends else 1 if "failed" in ends else 0,
        warning=warning,
        damage=results.damage,
    )
