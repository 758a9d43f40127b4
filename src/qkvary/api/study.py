"""Run a study: train unfinished runs, print the answer, write the report."""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from qkvary.api.arguments import verb
from qkvary.api.options import PART, SILENT, AnyStudy, Part, Terminal, choose_study
from qkvary.api.results import Result, add_data
from qkvary.arch.canonical import IMPORTED
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.files import write_report
from qkvary.reports.page import render_page
from qkvary.reports.report import Report
from qkvary.reports.study import study_report
from qkvary.reports.study_results import Results, gather_results, report_folder
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import Threads, usable_cores, without_downloads
from qkvary.storage.errors import EndedEarlyError, MisfitError, QkvaryError, UsageError
from qkvary.studies.results.analysis import describe_equal_parameters
from qkvary.studies.results.summary import Summary
from qkvary.studies.running.cells import CellOptions
from qkvary.studies.running.executors.catalog import ExecutorName, check_executor, load_executor
from qkvary.studies.running.executors.contract import CLUSTER, ClusterOptions
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Study
from qkvary.text.names import count
from qkvary.text.numbers import duration
from qkvary.training.trackers import TrackerName, require_tracker

REFRESH_SECONDS = 20
"""Seconds after which the page of an unfinished study reloads itself."""
MOST_REASONS = 5
"""Maximum number of printed reasons for failed and diverged runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Options for running a study: its processes, logs and failed runs."""

    workers: Threads | None = None
    """Worker processes; one per usable core if not given."""
    executor: ExecutorName = "local"
    """Executor of the runs: worker processes of this machine, tasks of a running Ray cluster, or
    jobs of a Slurm queue."""
    log: TrackerName | None = None
    """A tracker that gets a copy of the logs; none if not given."""
    strict: bool = False
    """Exit with code 1 if any run failed or diverged. By default, the code is 1 only if no run
    succeeded."""
    retry_failed: bool = False
    """Run failed runs again."""
    dry_run: bool = False
    """Print the planned runs and their estimated time, and run nothing."""


RUNNING = Running()


@verb
def study(
    study: AnyStudy,
    *,
    part: Part = PART,
    running: Running = RUNNING,
    cluster: ClusterOptions = CLUSTER,
    out: Path = RUNS,
    terminal: Terminal = SILENT,
) -> Result[Summary | None]:
    """Run a study: train unfinished runs, print the answer, write the report.

    Finished runs are not run again. The same call resumes a stopped study.

    Args:
        study: A study by its name, or a Python file with a STUDY by its path. In Python also a
            ``qk.Study``.
        part: The part of the study.
        running: The processes that run the study, its logs, and what to do about failed runs.
        cluster: The options of Ray and Slurm.
        out: Folder of runs and reports.
        terminal: Shows progress and messages.

    Raises:
        ValueError: for an unknown study, or options that make no sense.
        QkvaryError: if the runs ended early; the same call resumes them.
    """
    _check_caller()
    chosen, store = choose_study(study, part), Store(out)
    check_executor(running.executor, cluster, running.workers)
    if running.dry_run:
        return Result(None, _plan(chosen, store, running.workers or usable_cores()))
    if running.log is not None:
        require_tracker(running.log)
    commands = part.write_commands(study, chosen.seeds, out)
    folder = report_folder(chosen.name, store.path)
    page = folder / "report.html"
    published: list[str] = []

    def gather() -> tuple[Results, Report]:
        found = gather_results(chosen, store, commands)
        return found, study_report(found.summary, found.attention, found.samples)

    def publish(refresh_seconds: int = REFRESH_SECONDS) -> str:
        make_directory(folder)
        text = render_page(gather()[1], refresh_seconds=refresh_seconds)
        atomic_write_file(page, text.encode())
        published.append(f"results so far, updated during the study: {page}")
        return published[0] if len(published) == 1 else ""

    runs = StudyRunner(
        chosen,
        store,
        executor=load_executor(running.executor, cluster, store.path, running.workers),
        retry_failed=running.retry_failed,
        options=CellOptions(tracker=running.log),
        say=terminal.say,
        show_progress=terminal.show_progress,
        announces_stop=terminal.command is not None,
        publish=publish,
    ).run()
    if runs.message or (runs.exit_code and runs.missing):
        if published:
            # The error that ended the study may also prevent writing the page.
            with suppress(QkvaryError, OSError):
                publish(0)
        document = {"runs": runs, "summary": None, "files": ()}
        left = f"stopped: {runs.missing:,} of {count(runs.planned, 'run')} left"
        can_resume = runs.exit_code != UsageError.exit_code
        said = (runs.message, f"{left}; the same command resumes the study" if can_resume else left)
        raise EndedEarlyError("\n".join(filter(None, said)), runs.exit_code, document)
    results, report = gather()
    troubled = runs.failed + runs.diverged
    return Result(
        results.summary,
        add_data(report, runs=runs),
        files=write_report(report, folder),
        closing=_say_outcome(runs, out),
        notices=results.damage,
        exit_code=runs.exit_code or int(troubled > 0 and (running.strict or not runs.done)),
    )


def _check_caller() -> None:
    """Refuse a call while the calling file is imported.

    Every process of a study imports this file, and would start the study again.
    """
    if IMPORTED:
        raise UsageError(
            f'expected `if __name__ == "__main__":` before the call of qk.study in {IMPORTED[-1]}, '
            "because every process of the study imports this file"
        )


def _say_outcome(runs: RunSummary, out: Path) -> tuple[str, ...]:
    """Return lines with the number of runs made, and the reasons of failed and diverged runs."""
    made = f"made {runs.executed:,} of {count(runs.planned, 'run')} in {duration(runs.seconds)}"
    troubled = [f"{runs.failed:,} failed"] if runs.failed else []
    troubled += [f"{runs.diverged:,} diverged"] if runs.diverged else []
    common = Counter(runs.reasons).most_common(MOST_REASONS)
    reasons = [f"{count(number, 'run')}: {reason}" for reason, number in common]
    where = f" --out {quote(os.fspath(out))}" if out != RUNS else ""
    reasons += [f"qkvary status --problems{where} lists these runs"] * bool(reasons)
    return "; ".join([made, *troubled]), *reasons


def _plan(study: Study, store: Store, workers: int) -> Report:
    cells = study.runs()
    states = Counter(store.state(key) for key in cells)
    left = [cell for key, cell in cells.items() if store.state(key) == "open"]
    seconds, missing = _estimate(left, workers)
    said = [
        (
            f"{count(len(study.variants), 'variant')}, {count(len(study.settings), 'setting')}, "
            f"{count(len(study.seeds), 'seed')}: {count(len(cells), 'run')}, "
            f"{states['done']:,} done, {states['running']:,} running, {states['open']:,} open"
        ),
        *describe_equal_parameters(study),
    ]
    if left and seconds is not None:
        some = f" of {count(len(left) - missing.total(), 'run')}" if missing else ""
        said.append(
            f"estimated time of the training steps{some} on this machine, from a few timed steps: "
            f"{duration(seconds)} with {count(workers, 'worker')}"
        )
    said += [f"no estimate for {count(runs, 'run')}: {reason}" for reason, runs in missing.items()]
    return Report(
        subject=f"plan: {study.name}",
        question=f"{study.name}: {study.question}",
        lead=study.description,
        answer=tuple(said),
        data={
            "study": study.name,
            "runs": len(cells),
            **{state: states[state] for state in ("done", "running", "open")},
            "settings": [setting.name for setting in study.settings],
            "variants": study.variants,
            "seeds": study.seeds,
            "estimated_seconds": seconds,
            "not_estimated": missing,
        },
    )


def _estimate(cells: Sequence[Cell], workers: int) -> tuple[float | None, Counter[str]]:
    """Return the estimated seconds of the runs that can be timed, and counts of the other runs.

    The runs without an estimate are counted by reason, such as missing data.
    """
    # Without an estimate, only the workers import torch.
    from qkvary.studies.timing import estimate_seconds, find_missing_data

    if not cells:
        return 0.0, Counter()
    with without_downloads():
        missing = find_missing_data(cells)
        ready = [cell for cell in cells if cell not in missing]
        reasons = Counter(missing.values())
        if not ready:
            return None, reasons
        try:
            return estimate_seconds(ready) / min(workers, len(ready)), reasons
        except MisfitError:
            raise
        except (QkvaryError, OSError, RuntimeError) as error:
            return None, reasons + Counter({str(error): len(ready)})
