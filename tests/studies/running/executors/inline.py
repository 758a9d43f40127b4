"""An executor of a cluster that executes its tasks in this process."""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qkvary.studies.running.executors.contract import Executor, TaskEnd, WorkerTask
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from tests.studies.toy_study import TOY_WORKER


class Inline(Executor):
    """Executes a task when it is submitted; the first are lost before or after that."""

    is_remote = True
    stop_seconds = 0.0

    def __init__(self, *, runs_per_task: int = 1, loses: int = 0, unmade: int = 0) -> None:
        self.runs_per_task, self.loses, self.unmade = runs_per_task, loses, unmade
        self.submitted: list[tuple[int, ...]] = []
        self.stopped = self.killed = self.closed = 0

    def submit(self, fn: Any, task: WorkerTask, /) -> Future[TaskEnd]:  # type: ignore[override]
        self.submitted.append(tuple(cell.seed for cell in task.cells))
        future = Future[TaskEnd]()
        try:
            future.set_result(self.execute(fn, task))
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future

    def execute(self, fn: Any, task: WorkerTask) -> TaskEnd:
        self.unmade -= 1
        end = fn(task) if self.unmade < 0 else None
        self.loses -= 1
        if end is None or self.loses >= 0:
            raise RuntimeError("node 7 is gone")
        return end

    def stop(self) -> None:
        self.stopped += 1

    def kill(self) -> None:
        self.killed += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del wait, cancel_futures
        self.closed += 1


def run_there(study: Study, root: Path, executor: Executor, **others: Any) -> RunSummary:
    given = {"trainer": TOY_WORKER, "executor": executor, **others}
    return StudyRunner(study, Store(root / "runs"), **given).run()


def trainer(patch: pytest.MonkeyPatch, train: Callable[..., Any]) -> str:
    """Return the name of a module whose ``train_cell`` is a function of a test."""
    patch.setitem(sys.modules, "toy_trainer", SimpleNamespace(train_cell=train))  # type: ignore[arg-type]
    return "toy_trainer"
