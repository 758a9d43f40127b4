"""Runs a study: finds the runs that are left, and has them executed. Torch-free.

Workers, and tasks of a cluster, claim runs from the store by themselves, so a second runner on the
same store, on this machine or another, shares the work.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from qkvary.storage.errors import NewerFormatError, UsageError
from qkvary.studies.running.data_sets import prepare_sets
from qkvary.studies.running.executors.contract import Executor
from qkvary.studies.running.executors.supervision import ClusterTasks
from qkvary.studies.running.ledger import Ledger, RunSummary
from qkvary.studies.running.live import LiveDisplay, PlainDisplay
from qkvary.studies.running.local_workers import LocalWorkers
from qkvary.studies.running.messages import Job
from qkvary.studies.running.publishing import Publisher
from qkvary.studies.running.signals import handle_endings, leave_terminal
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.training.trackers import FILE_TRACKERS, TrackerName, require_tracker

WORKER_MODULE = "qkvary.studies.running.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Options of the runner; they do not affect results."""

    workers: int | None = None
    """Worker processes; None for one per processor."""
    strict: bool = False
    """Whether failed and diverged runs make the exit code 1."""
    retry_failed: bool = False
    """Whether to repeat failed runs."""
    checkpoint_seconds: float = 30.0
    """Seconds between two checkpoints of a run."""
    quiet: bool = False
    """Whether to print nothing."""
    worker_module: str = WORKER_MODULE
    """The program of the workers."""
    tracker: TrackerName | None = None
    """The tracker that gets a copy of the logs; None for none."""
    executor: Executor | None = None
    """Submits the runs to a cluster; None for worker processes of this machine."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        require_tracker(self.tracker)
        has_own_folders = self.executor is not None and not self.executor.shared_folder
        if has_own_folders and self.tracker in FILE_TRACKERS:
            raise UsageError(
                f"expected --log wandb with --no-shared-folder, got {self.tracker}, which writes "
                "files on each node"
            )


def run_study(
    study: Study,
    store: Store,
    options: RunnerOptions | None = None,
    *,
    console: Console | None = None,
    publish: Callable[[], None] | None = None,
) -> RunSummary:
    """Execute every run of ``study`` that is not done in ``store``.

    On Ctrl-C, SIGTERM or SIGHUP each worker writes a checkpoint and ends; a second signal kills
    them.

    Args:
        study: The study.
        store: The store of runs.
        options: Options of the runner.
        console: Console for progress; standard error by default.
        publish: Shows the results so far to the user; called now and then, with new results.
    """
    chosen = options or RunnerOptions()
    ledger = Ledger(study.cells(), store)
    ledger.view.name = study.name
    if not chosen.quiet:
        console = console or Console(stderr=True)
        kind = LiveDisplay if console.is_terminal else PlainDisplay
        ledger.display = kind(console, ledger.view)
    ledger.publisher = Publisher(publish)
    job = Job(
        store=store.path.absolute(),
        cells=ledger.cells,
        checkpoint_seconds=chosen.checkpoint_seconds,
        tracker=chosen.tracker,
        project=study.name,
        # It is filled before the first run starts.
        again=ledger.again,
    )
    if chosen.executor is None:
        workers = LocalWorkers(ledger, job, workers=chosen.workers, module=chosen.worker_module)
    else:
        workers = ClusterTasks(ledger, job, chosen.executor)

    def handle_signal(number: int, _frame: FrameType | None) -> None:
        if ledger.signal:
            workers.kill()
            ledger.display.close()
            os._exit(128 + number)
        ledger.signal = number
        leave_terminal(number)

    try:
        with handle_endings(handle_signal):
            _execute(ledger, workers, retry_failed=chosen.retry_failed)
            return ledger.summary(strict=chosen.strict)
    finally:
        ledger.display.close()


def _execute(ledger: Ledger, workers: LocalWorkers | ClusterTasks, *, retry_failed: bool) -> None:
    try:
        ledger.find_open_runs(retry_failed=retry_failed)
    except NewerFormatError as error:
        ledger.abort(error.exit_code, str(error))
        return
    prepare_sets(ledger.remaining.values(), ledger.note)
    workers.supervise()
