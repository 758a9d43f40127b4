"""Runs a study: submits open runs to an executor, and reads their outcome from the store.

Every task claims its runs from the store, so that a second runner on the same store, on this
machine or another, shares the work. Torch-free.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from qkvary.storage.environment import stop_in_order, usable_cores
from qkvary.storage.manifest import CHECKPOINT_SECONDS
from qkvary.studies.running.cells import CellOptions
from qkvary.studies.running.executors.contract import Executor, WorkerTask
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.scheduler import Scheduler
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.training.trackers import TrackerName, require_tracker

TRAINER = "qkvary.studies.running.training"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Options of the runner; they do not affect results."""

    workers: int | None = None
    """Worker processes; None for one per usable core."""
    strict: bool = False
    """Whether failed and diverged runs set the exit code to 1."""
    retry_failed: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    quiet: bool = False
    """Whether to print no progress and no messages."""
    trainer: str = TRAINER
    """The module whose ``train_cell`` trains a run."""
    tracker: TrackerName | None = None
    """The tracker that gets a copy of the logs; None for none."""
    executor: Executor | None = None
    """Where the runs execute; None for worker processes of this machine."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.tracker is not None:
            require_tracker(self.tracker)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The outcome of running a study."""

    planned: int
    done: int
    failed: int
    diverged: int
    missing: int
    """Number of runs without a record."""
    executed: int
    """Number of runs that ended in the workers of this runner."""
    seconds: float
    exit_code: int
    message: str = ""
    """Why the runner stopped early; empty if it did not."""
    notes: tuple[str, ...] = ()


def run_study(
    study: Study,
    store: Store,
    options: RunnerOptions | None = None,
    *,
    publish: Callable[[], str] | None = None,
) -> RunSummary:
    """Execute every run of ``study`` that is not done in ``store``.

    On Ctrl-C, SIGTERM or SIGHUP each worker writes a checkpoint and ends; a second signal kills the
    workers.

    Args:
        study: The study.
        store: The store of runs.
        options: Options of the runner.
        publish: A function that shows the results so far to the user and returns a sentence to
            print, or an empty string. It is called from time to time when there are new results.
    """
    chosen = options or RunnerOptions()
    runner = Scheduler(
        study,
        WorkerTask(
            store=store.path.absolute(),
            cells=(),
            options=CellOptions(
                checkpoint_seconds=chosen.checkpoint_seconds,
                tracker=chosen.tracker,
                project=study.name,
            ),
            trainer=chosen.trainer,
        ),
        chosen.executor or LocalExecutor(chosen.workers or usable_cores()),
        retry_failed=chosen.retry_failed,
        publish=publish,
        quiet=chosen.quiet,
    )
    with stop_in_order(runner.interrupt, runner.kill):
        runner.run()
    progress = runner.progress
    counts = progress.count()
    troubled = chosen.strict and (counts["failed"] or counts["diverged"])
    code = 128 + runner.signal if runner.signal and runner.left else runner.exit_code
    return RunSummary(
        planned=len(runner.cells),
        done=counts["done"],
        failed=counts["failed"],
        diverged=counts["diverged"],
        missing=len(runner.left),
        executed=len(progress.seconds),
        seconds=time.monotonic() - progress.began,
        exit_code=code or (1 if troubled else 0),
        message=runner.message,
        notes=tuple(runner.notes),
    )
