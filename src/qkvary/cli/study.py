"""Run a study: train unfinished runs, print the answer, write the report."""

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_WHERE,
    Json,
    Out,
    StudyName,
    Where,
    choose_study,
    convert_threads,
)
from qkvary.cli._output import console, print_json, show
from qkvary.cli._streams import print_error
from qkvary.reports.files import write_report
from qkvary.reports.page import render_page
from qkvary.reports.study import study_report
from qkvary.reports.study_results import gather_results, report_folder
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.studies.equal_parameters import describe_equal_parameters
from qkvary.studies.running.runner import RunnerOptions, RunSummary, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.units import duration

REFRESH_SECONDS = 20
"""Seconds after which the page of an unfinished study reloads itself."""

Workers = Annotated[
    int | None,
    Parameter(
        name="--workers",
        converter=convert_threads,
        help="Worker processes; by default one for each processor.",
    ),
]
Strict = Annotated[
    bool,
    Parameter(name="--strict", negative=(), help="Exit with 1 if a run failed or diverged."),
]
RetryFailed = Annotated[
    bool, Parameter(name="--retry-failed", negative=(), help="Run failed runs again.")
]
DryRun = Annotated[
    bool, Parameter(name="--dry-run", negative=(), help="Print the planned runs, and run nothing.")
]


def command(
    study: StudyName,
    /,
    *,
    where: Where = DEFAULT_WHERE,
    workers: Workers = None,
    out: Out = DEFAULT_OUT,
    strict: Strict = False,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    json_output: Json = False,
) -> int:
    """Run a study: train unfinished runs, print the answer, write the report.

    Finished runs are not run again; a stopped study resumes where it stopped.
    """
    chosen, store = choose_study(study, where), Store(out)
    options = RunnerOptions(workers=workers, strict=strict, retry_failed=retry_failed)
    if dry_run:
        _print_plan(chosen, store, json_output=json_output)
        return 0
    screen = console(sys.stderr)
    folder = report_folder(chosen.name, out)
    page = folder / "report.html"

    announced = False

    def publish() -> None:
        nonlocal announced
        results = gather_results(chosen, store)
        made = render_page(
            study_report(results.summary, results.attention), refresh_seconds=REFRESH_SECONDS
        )
        make_directory(folder)
        atomic_write_file(page, made.encode())
        if not announced:
            announced = True
            screen.print(Text(f"results so far, refreshed as they come: {page}"), soft_wrap=True)

    runs = run_study(chosen, store, options, console=screen, publish=publish)
    ended_early = bool(runs.message or (runs.exit_code and runs.missing))
    if ended_early:
        _explain(runs)
    if ended_early and not json_output:
        return runs.exit_code
    if runs.message:
        # Its cause may also keep runs from being read; an existing page is kept.
        print_json({"runs": runs, "summary": None, "files": []})
        return runs.exit_code
    results = gather_results(chosen, store)
    report = study_report(results.summary, results.attention)
    files = write_report(report, folder)
    show(report, json_output=json_output, files=files, runs=runs)
    if not json_output:
        for sentence in results.damage:
            print_error(sentence)
        _print_end(runs)
    return runs.exit_code


def _print_plan(study: Study, store: Store, *, json_output: bool) -> None:
    cells = study.cells()
    states = Counter(store.state(key) for key in dict.fromkeys(cell.run_key for cell in cells))
    plan: Mapping[str, Any] = {
        "study": study.name,
        "runs": states.total(),
        "done": states["done"],
        "running": states["running"],
        "open": states["open"],
        "settings": [setting.name for setting in study.settings],
        "variants": study.variants,
        "seeds": study.seeds,
    }
    if json_output:
        print_json(plan)
        return
    screen = console()
    screen.print(Text(f"{study.name}: {study.question}", style="bold"))
    screen.print(Text(study.description))
    parts = (
        f"{len(study.variants)} variants, {len(study.settings)} settings, {len(study.seeds)} seeds"
    )
    total, cells = states.total(), len(study.cells())
    shared = "" if total == cells else f" for {cells:,} cells of the tables"
    screen.print(f"{parts}: {total:,} runs{shared}, {states['done']:,} done, ", end="")
    screen.print(f"{states['running']:,} running, {states['open']:,} open")
    for sentence in describe_equal_parameters(study):
        screen.print(Text(sentence))


def _explain(runs: RunSummary) -> None:
    """Print why the runner ended early, and that the study can be resumed."""
    if runs.message:
        print_error(runs.message)
    print_error(
        f"stopped: {runs.missing:,} of {runs.planned:,} runs are left; "
        "the same command resumes where it stopped"
    )


def _print_end(runs: RunSummary) -> None:
    made = f"{runs.executed:,} of {runs.planned:,} runs were made now, in {duration(runs.seconds)}"
    troubled = [f"{runs.failed:,} failed"] * bool(runs.failed)
    troubled += [f"{runs.diverged:,} diverged"] * bool(runs.diverged)
    console().print(Text("; ".join([made, *troubled])))
