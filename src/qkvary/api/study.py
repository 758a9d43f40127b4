"""Run a study: train unfinished runs, print the answer, write the report."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._cluster_options import DEFAULT_PLACEMENT, Placement
from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_PART,
    Json,
    Log,
    Out,
    Part,
    StudyName,
    choose_study,
    convert_threads,
)
from qkvary.cli._output import console, print_json, print_line, show
from qkvary.cli._streams import print_error
from qkvary.reports.page import render_page
from qkvary.reports.report import Report
from qkvary.reports.study import study_report
from qkvary.reports.study_results import gather_results, report_folder
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.errors import QkvaryError
from qkvary.studies.equal_parameters import describe_equal_parameters
from qkvary.studies.running.runner import RunnerOptions, RunSummary, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Study
from qkvary.text.names import count
from qkvary.text.units import duration

REFRESH_SECONDS = 20
"""Seconds after which the page of an unfinished study reloads itself."""

Workers = Annotated[
    int | None,
    Parameter(
        converter=convert_threads, help="Worker processes; by default one for each processor."
    ),
]
Strict = Annotated[bool, Parameter(help="Exit with 1 if a run failed or diverged.")]
RetryFailed = Annotated[bool, Parameter(help="Run failed runs again.")]
DryRun = Annotated[
    bool, Parameter(help="Print the planned runs and their estimated time, and run nothing.")
]


def command(
    study: StudyName,
    /,
    *,
    part: Part = DEFAULT_PART,
    workers: Workers = None,
    placement: Placement = DEFAULT_PLACEMENT,
    log: Log = None,
    out: Out = DEFAULT_OUT,
    strict: Strict = False,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    json_output: Json = False,
) -> int:
    """Run a study: train unfinished runs, print the answer, write the report.

    Finished runs are not run again; a stopped study resumes where it stopped.
    """
    chosen, store = choose_study(study, part), Store(out)
    options = RunnerOptions(workers=workers, strict=strict, retry_failed=retry_failed, tracker=log)
    if dry_run:
        placement.check(workers)
        _print_plan(chosen, store, workers or os.cpu_count() or 1, json_output=json_output)
        return 0
    options = replace(options, executor=placement.load(out, workers))
    screen = console(sys.stderr)
    folder = report_folder(chosen.name, out)
    page = folder / "report.html"

    announced = False

    def write_page(refresh_seconds: int) -> None:
        results = gather_results(chosen, store, part.typed(study, chosen))
        made = study_report(results.summary, results.attention, results.samples)
        make_directory(folder)
        atomic_write_file(page, render_page(made, refresh_seconds=refresh_seconds).encode())

    def publish() -> None:
        nonlocal announced
        write_page(REFRESH_SECONDS)
        if not announced:
            announced = True
            print_line(screen, f"results so far, refreshed as they come: {page}")

    runs = run_study(chosen, store, options, console=screen, publish=publish)
    ended_early = bool(runs.message or (runs.exit_code and runs.missing))
    if ended_early and announced:
        # What ended the study may keep the page from being written too.
        with suppress(QkvaryError, OSError):
            write_page(0)
    if ended_early:
        _explain(runs)
    if ended_early and not json_output:
        return runs.exit_code
    if runs.message:
        # Its cause may also keep runs from being read; an existing page is kept.
        print_json({"runs": runs, "summary": None, "files": []})
        return runs.exit_code
    results = gather_results(chosen, store, part.typed(study, chosen))
    report = study_report(results.summary, results.attention, results.samples)
    show(report, json_output=json_output, target=folder, runs=runs)
    if not json_output:
        for sentence in results.damage:
            print_error(sentence)
        _print_end(runs)
    return runs.exit_code


def _print_plan(study: Study, store: Store, workers: int, *, json_output: bool) -> None:
    cells = {cell.run_key: cell for cell in study.cells()}
    states = Counter(store.state(key) for key in cells)
    left = [cell for key, cell in cells.items() if store.state(key) == "open"]
    seconds, missing = _estimate(left, workers)
    total, of_tables = states.total(), len(study.cells())
    shared = "" if total == of_tables else f" for {of_tables:,} cells of the tables"
    said = [
        (
            f"{count(len(study.variants), 'variant')}, {count(len(study.settings), 'setting')}, "
            f"{count(len(study.seeds), 'seed')}: {count(total, 'run')}{shared}, "
            f"{states['done']:,} done, {states['running']:,} running, {states['open']:,} open"
        ),
        *describe_equal_parameters(study),
    ]
    if left and seconds is not None:
        part = f" of {count(len(left) - missing.total(), 'run')}" if missing else ""
        said.append(
            f"estimated time{part} on this machine, by a few timed steps and evaluations: "
            f"{duration(seconds)} with {count(workers, 'worker')}"
        )
    said += [f"no estimate of {count(runs, 'run')}: {reason}" for reason, runs in missing.items()]
    report = Report(
        subject=f"plan: {study.name}",
        question=f"{study.name}: {study.question}",
        lead=study.description,
        answer=tuple(said),
        data={
            "study": study.name,
            "runs": total,
            **{state: states[state] for state in ("done", "running", "open")},
            "settings": [setting.name for setting in study.settings],
            "variants": study.variants,
            "seeds": study.seeds,
            "estimated_seconds": seconds,
            "not_estimated": missing,
        },
    )
    show(report, json_output=json_output)


def _estimate(cells: Sequence[Cell], workers: int) -> tuple[float | None, Counter[str]]:
    """Return the estimated seconds of the runs whose data is here, and why others have none.

    Raises:
        DamagedError: if data of a task is damaged.
    """
    # Other uses of the command import torch in the workers only.
    from qkvary.studies.running.timing import estimate_seconds, find_missing_data

    if not cells:
        return 0.0, Counter()
    # A plan downloads nothing.
    os.environ["HF_HUB_OFFLINE"] = "1"
    missing = find_missing_data(cells)
    ready = [cell for cell in cells if cell not in missing]
    reasons = Counter(missing.values())
    if not ready:
        return None, reasons
    try:
        return estimate_seconds(ready) / min(workers, len(ready)), reasons
    except (QkvaryError, OSError, RuntimeError) as error:
        return None, reasons + Counter({str(error): len(ready)})


def _explain(runs: RunSummary) -> None:
    """Print why the runner ended early, and that the study can be resumed."""
    if runs.message:
        print_error(runs.message)
    print_error(
        f"stopped: {runs.missing:,} of {count(runs.planned, 'run')} left; "
        "the same command resumes where it stopped"
    )


def _print_end(runs: RunSummary) -> None:
    made = f"made {runs.executed:,} of {count(runs.planned, 'run')} in {duration(runs.seconds)}"
    troubled = [f"{runs.failed:,} failed"] * bool(runs.failed)
    troubled += [f"{runs.diverged:,} diverged"] * bool(runs.diverged)
    print_line(console(), "; ".join([made, *troubled]))
