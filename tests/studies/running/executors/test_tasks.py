"""Tasks of a cluster, executed in this process by an executor of the test."""

import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from qkvary.storage import file_systems
from qkvary.storage.errors import UsageError
from qkvary.studies.running import runner
from qkvary.studies.running.cells import MAX_CRASHES, CellOptions
from qkvary.studies.running.executors.contract import (
    Resources,
    TaskEnd,
    WorkerTask,
    needed_resources,
)
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell
from tests.studies import toy_worker
from tests.studies.running.executors.inline import Inline, run_there, trainer
from tests.studies.toy_study import check_equal, ends, stored_record, toy_study


def test_tasks_make_every_run_once(root: Path) -> None:
    study, executor = toy_study(range(4)), Inline(runs_per_task=3)
    summary = run_there(study, root, executor)
    assert (summary.done, summary.executed, summary.exit_code) == (8, 8, 0)
    assert summary.notes == ()
    assert [len(task) for task in executor.submitted] == [3, 3, 2]
    assert set(ends(root).values()) == {1}
    check_equal(study, root)
    assert (executor.stopped, executor.closed) == (0, 1)


def test_a_lost_task_is_submitted_again(root: Path) -> None:
    executor = Inline(unmade=MAX_CRASHES)
    summary = run_there(toy_study([0]), root, executor)
    assert (summary.done, summary.exit_code) == (2, 0)
    assert len(executor.submitted) == 2 + MAX_CRASHES
    assert len([note for note in summary.notes if "node 7 is gone" in note]) == MAX_CRASHES


def test_a_task_that_is_lost_after_its_run_counts_as_made(root: Path) -> None:
    executor = Inline(loses=1)
    summary = run_there(toy_study([0]), root, executor)
    assert (summary.done, len(executor.submitted)) == (2, 2)


def test_a_cluster_that_starts_no_run_ends_the_study(root: Path) -> None:
    executor = Inline(unmade=1000)
    summary = run_there(toy_study([0, 1]), root, executor)
    assert summary.exit_code == 4
    assert "node 7 is gone" in summary.message
    # Two runs have each seed.
    assert max(map(executor.submitted.count, executor.submitted)) <= 2 * (MAX_CRASHES + 2)
    assert (executor.stopped, executor.closed, summary.missing) == (1, 1, 4)


class Elsewhere(Inline):
    """Its node has another folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def execute(self, fn: Any, task: WorkerTask) -> TaskEnd:
        return super().execute(fn, replace(task, store=self.folder))


@pytest.mark.parametrize(
    ("is_there", "message"), [(False, "got .*/other"), (True, "its record is not in .*/runs")]
)
def test_a_node_that_does_not_see_the_folder_ends_the_study(
    root: Path, is_there: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "UNSEEN_SECONDS", 0.0)
    if is_there:
        (root / "other").mkdir()
    summary = run_there(toy_study([0]), root, Elsewhere(root / "other"))
    assert (summary.done, summary.exit_code) == (0, 2)
    assert re.search(message, summary.message)
    assert "that all nodes see under the same path" in summary.message


def test_a_record_that_a_file_server_shows_late_is_waited_for(root: Path) -> None:
    class Late(Elsewhere):
        def execute(self, fn: Any, task: WorkerTask) -> TaskEnd:
            end = super().execute(fn, task)
            made, seen = (
                Store(path).directory(task.cells[0].run_key) for path in (self.folder, task.store)
            )
            seen.parent.mkdir(exist_ok=True)
            threading.Timer(0.1, made.rename, [seen]).start()
            return end

    (root / "other").mkdir()
    executor = Late(root / "other")
    summary = run_there(toy_study([0]), root, executor)
    assert (summary.done, summary.executed, summary.exit_code) == (2, 2, 0)
    assert len(executor.submitted) == 2
    assert any(note.startswith("waiting for the record: ") for note in summary.notes)


def test_a_node_that_lacks_the_data_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = toy_study([0])
    first, _second = study.cells()

    def train(cell: Cell, *others: Any, **given: Any) -> Any:
        if cell == first:
            return toy_worker.train_cell(cell, *others, **given)
        raise UsageError("expected the data set 0123 of novels, got none")

    executor = Inline(runs_per_task=2)
    summary = run_there(study, root, executor, trainer=trainer(monkeypatch, train))
    assert (summary.exit_code, summary.done, summary.missing) == (2, 1, 1)
    assert f"expected the data set 0123 of novels, got none (on {gethostname()})" in summary.message


def test_locks_that_do_not_reach_other_machines_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = root / "mountinfo"
    mounts.write_text(f"22 1 8:1 / {root} rw - nfs4 server:/net rw,local_lock=all\n")
    monkeypatch.setattr(file_systems, "_MOUNTS", mounts)
    summary = run_there(toy_study([0]), root, Inline())
    assert [note for note in summary.notes if "local_lock=all" in note]


def test_a_run_whose_tasks_crash_is_recorded_as_failed(root: Path) -> None:
    """Its lock counts the deaths; the error of the last task is in the record."""
    study, store = toy_study([0]), Store(root / "runs")
    crashing = study.cells()[0]

    class Crashing(Inline):
        begun = 0

        def execute(self, fn: Any, task: WorkerTask) -> TaskEnd:
            self.begun += task.cells[0] == crashing
            if task.cells[0] != crashing or self.begun > MAX_CRASHES + 1:
                return super().execute(fn, task)
            child = os.fork()
            if not child:
                store.claim(crashing.run.identity())
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
            raise RuntimeError("node 7 is gone")

    summary = run_there(study, root, Crashing())
    assert (summary.done, summary.failed, summary.missing) == (1, 1, 0)
    record = stored_record(store, crashing.run_key)
    assert record.message.startswith("this run crashed 4 workers, the last: ")
    assert "node 7 is gone" in record.message


def test_what_was_submitted_is_cancelled_whatever_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("no room for a note")

    monkeypatch.setattr("qkvary.studies.running.runner.StudyRunner._handle_end", fail)
    executor = Inline()
    with pytest.raises(RuntimeError, match="no room for a note"):
        run_there(toy_study([0]), root, executor)
    assert (executor.stopped, executor.closed) == (1, 1)


class Disturbed(Inline):
    """The first tasks end with something other than a report."""

    def __init__(self, *ends: Any) -> None:
        super().__init__()
        self.ends = list(ends)

    def execute(self, fn: Any, task: WorkerTask) -> TaskEnd:
        end = self.ends.pop(0) if self.ends else super().execute(fn, task)
        if isinstance(end, Exception):
            raise end
        return end


def test_a_lost_scheduler_is_no_lost_task(root: Path) -> None:
    """An unreadable result is a lost task; a scheduler that is gone ends the study."""
    gone = ConnectionError("the cluster is gone")
    summary = run_there(toy_study([0]), root, Disturbed(EOFError("cut"), "no end of a task", gone))
    assert summary.exit_code == 4
    assert summary.message == "the scheduler cannot be reached: the cluster is gone"
    notes = " ".join(summary.notes)
    assert "EOFError: cut" in notes
    assert "AttributeError: 'str' object has no attribute" in notes


def test_a_task_needs_what_its_most_demanding_run_needs(root: Path) -> None:
    (cell, *_) = toy_study([0]).cells()
    there = replace(cell, run=replace(cell.run, device="cuda"))
    training = replace(cell.run.training, batch_size=10**9)
    large = replace(cell, run=replace(cell.run, training=training))

    def needs(*cells: Cell) -> Resources:
        task = WorkerTask(store=root, cells=cells, options=CellOptions(), trainer="")
        return needed_resources(task, 0.5)

    assert (needs(there).gpus, needs(there).memory_bytes) == (0.5, 4 * 2**30)
    assert (needs(cell).gpus, needs(cell).cores) == (0.0, 1)
    assert needs(large).memory_bytes > 4 * 2**30
    assert needs(cell, large) == needs(large)
    assert needs(there, large) == replace(needs(large), gpus=0.5)
