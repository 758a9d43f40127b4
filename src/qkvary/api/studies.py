"""``qk.run_study``: variants compared under identical conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qkvary.api.results import Result
from qkvary.reports.study import study_report
from qkvary.reports.study_results import gather_results
from qkvary.storage.errors import QkvaryError
from qkvary.studies.catalog import load_study
from qkvary.studies.results.summary import Summary
from qkvary.studies.running.runner import RunnerOptions
from qkvary.studies.running.runner import run_study as run
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study


def run_study(
    study: str | Path | Study,
    *,
    out: str | Path = "runs",
    seeds: int | Sequence[int] | None = None,
    workers: int | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
) -> Result[Summary]:
    """Run a study: train unfinished runs, and compare the variants.

    Finished runs are not run again; a stopped study resumes where it stopped.

    Args:
        study: The name of a study, the path of a Python file with a ``STUDY``, or a ``qk.Study``.
        out: The folder of runs.
        seeds: Other seeds than the study's.
        workers: Worker processes; by default one for each processor.
        retry_failed: Run failed runs again.
        quiet: Print no progress.

    Raises:
        ValueError: for an unknown study, or options that make no sense.
        QkvaryError: if the runs ended early; the same call resumes them.
    """
    chosen = study if isinstance(study, Study) else load_study(str(study))
    if seeds is not None:
        chosen = replace(chosen, seeds=(seeds,) if isinstance(seeds, int) else tuple(seeds))
    store = Store(Path(out))
    options = RunnerOptions(workers=workers, retry_failed=retry_failed, quiet=quiet)
    runs = run(chosen, store, options)
    if runs.message:
        raise QkvaryError(
            f"{runs.message}; {runs.missing:,} of {runs.planned:,} runs are left, the same call "
            "resumes where it stopped"
        )
    results = gather_results(chosen, store)
    return Result(
        results.summary, study_report(results.summary, results.attention, results.samples)
    )
