"""Runs a study.

Every task claims its runs from the store, so that a second runner on the same store, on this
machine or another, shares the work. Torch-free.
"""

import time
from dataclasses import dataclass

from qkvary.storage.environment import stop_in_order
from qkvary.studies.running.scheduler import RunnerOptions, Scheduler
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study


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
) -> RunSummary:
    """Execute every run of ``study`` that is not done in ``store``.

    On Ctrl-C, SIGTERM or SIGHUP each worker writes a checkpoint and ends; a second signal kills the
    workers.
    """
    chosen = options or RunnerOptions()
    scheduler = Scheduler(study, store, chosen)
    with stop_in_order(scheduler.interrupt, scheduler.kill):
        scheduler.run()
    counts = scheduler.count()
    is_strict_failure = chosen.strict and (counts["failed"] or counts["diverged"])
    is_stopped = scheduler.signal and scheduler.left
    code = 128 + scheduler.signal if is_stopped else scheduler.exit_code
    return RunSummary(
        planned=len(scheduler.cells),
        done=counts["done"],
        failed=counts["failed"],
        diverged=counts["diverged"],
        missing=len(scheduler.left),
        executed=scheduler.executed,
        seconds=time.monotonic() - scheduler.began,
        exit_code=code or (1 if is_strict_failure else 0),
        message=scheduler.message,
        notes=tuple(scheduler.notes),
    )
