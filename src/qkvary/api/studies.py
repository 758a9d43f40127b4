"""``qk.run_study``: variants compared under identical conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qkvary.api.results import Result
from qkvary.reports.study import study_report
from qkvary.reports.study_results import gather_results
from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.storage.paths import StrPath
from qkvary.studies.catalog import load_study
from qkvary.studies.results.summary import Summary
from qkvary.studies.running.executors.catalog import (
    ExecutorName,
    check_executor,
    load_executor,
)
from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.runner import RunnerOptions
from qkvary.studies.running.runner import run_study as run
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study, check_number_of_seeds
from qkvary.text.names import count
from qkvary.training.trackers import TrackerName


def run_study(
    study: StrPath | Study,
    *,
    out: StrPath = "runs",
    seeds: int | Sequence[int] | None = None,
    workers: int | None = None,
    executor: ExecutorName = "local",
    cluster: ClusterOptions | None = None,
    log: TrackerName | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
) -> Result[Summary]:
    """Run a study: train unfinished runs, and compare the variants.

    Finished runs are not run again; a stopped study resumes where it stopped.

    Args:
        study: The name of a study, the path of a Python file with a ``STUDY``, or a ``qk.Study``.
        out: The folder of runs.
        seeds: Other seeds than the study's.
        workers: Worker processes of this machine; by default one for each processor.
        executor: ``"local"`` for worker processes of this machine, ``"ray"`` for tasks of a running
            Ray cluster, ``"slurm"`` for jobs of a queue.
        cluster: Options of an executor other than ``"local"``.
        log: A tracker that gets a copy of the logs: ``"tensorboard"``, ``"trackio"`` or
            ``"wandb"``.
        retry_failed: Run failed runs again.
        quiet: Print no progress.

    Raises:
        ValueError: for an unknown study, or options that make no sense.
        QkvaryError: if the runs ended early; the same call resumes them.
    """
    chosen = study.pinned() if isinstance(study, Study) else load_study(study)
    if seeds is not None:
        several = [seeds] if isinstance(seeds, int) else seeds
        check_number_of_seeds(len(several))
        chosen = replace(chosen, seeds=tuple(several))
    if cluster is not None and executor == "local":
        raise UsageError("expected executor ray or slurm with cluster, got local")
    placement = cluster or ClusterOptions()
    check_executor(executor, placement, workers)
    store = Store(out)
    options = RunnerOptions(
        workers=workers,
        retry_failed=retry_failed,
        quiet=quiet,
        tracker=log,
        executor=load_executor(executor, placement, store.path),
    )
    runs = run(chosen, store, options)
    if runs.message:
        raise QkvaryError(
            f"{runs.message}; {runs.missing:,} of {count(runs.planned, 'run')} left, the same call "
            "resumes where it stopped"
        )
    results = gather_results(chosen, store)
    return Result(
        results.summary, study_report(results.summary, results.attention, results.samples)
    )
