"""Tasks of a cluster, executed in this process by an executor of the test."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from qkvary.storage import file_systems
from qkvary.studies.running.executors.contract import Ending, Resources, Task
from qkvary.studies.running.executors.execution import (
    MEMORY_UNIT,
    PROCESS_BYTES,
    Execution,
    needed_resources,
    read_messages,
)
from qkvary.studies.running.recording import run_identity
from qkvary.studies.running.runner import RunnerOptions, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.running.work_loop import MAX_CRASHES
from qkvary.studies.study import Cell
from tests.storage.quick_disk import quick_folder
from tests.studies import toy_worker
from tests.studies.toy_study import ends, run_toy, starts, table, toy_study

root = pytest.fixture(quick_folder)
second_root = pytest.fixture(quick_folder)


class Inline:
    """Executes a task when it is asked for endings; loses the first of them, if wanted."""

    def __init__(self, *, runs_per_task: int = 1, loses: int = 0, marker: str = "") -> None:
        self.runs_per_task, self.loses, self.marker = runs_per_task, loses, marker
        self.tasks: list[Task] = []
        self.submitted: list[tuple[int, ...]] = []
        self.cancelled = self.closed = 0

    def needs(self, cell: Cell) -> Resources:
        return needed_resources(cell, 1.0)

    def find_obstacle(self, needs: Resources) -> str | None:
        return "runs wait for a larger node" if needs.cores == 1 else None

    def submit(self, tasks: Sequence[Task]) -> None:
        self.tasks += tasks
        self.submitted += [task.numbers for task in tasks]

    def collect(self, _seconds: float) -> Sequence[Ending]:
        task = self.tasks.pop(0)
        if self.cancelled:
            return [Ending(task=task, error="cancelled")]
        if self.loses:
            self.loses -= 1
            return [Ending(task=task, error="node 7 is gone")]
        execution = Execution(
            job=task.job.to_line(),
            marker=self.marker or task.marker,
            train_run=toy_worker.train_cell,
        )
        return [Ending(task=task, messages=read_messages(execution()))]

    def cancel(self) -> None:
        self.cancelled += 1

    def close(self) -> None:
        self.closed += 1


def test_tasks_make_every_run_once(root: Path, second_root: Path) -> None:
    study, executor = toy_study(range(4)), Inline(runs_per_task=3)
    options = RunnerOptions(executor=executor, quiet=True)
    summary = run_study(study, Store(root / "runs"), options)
    assert (summary.done, summary.executed, summary.exit_code) == (8, 8, 0)
    assert summary.notes == ("runs wait for a larger node",)
    assert sorted(number for task in executor.submitted for number in task) == list(range(8))
    assert [len(task) for task in executor.submitted] == [3, 3, 2]
    assert set(ends(root).values()) == {1}
    run_toy(study, second_root)
    assert table(study, root) == table(study, second_root)
    assert (executor.cancelled, executor.closed) == (0, 1)
    assert not list((root / "runs").glob("cluster-*"))


def test_a_lost_task_is_submitted_again(root: Path) -> None:
    executor = Inline(loses=MAX_CRASHES)
    options = RunnerOptions(executor=executor, quiet=True)
    summary = run_study(toy_study([0]), Store(root / "runs"), options)
    assert (summary.done, summary.exit_code) == (2, 0)
    assert len(executor.submitted) == 2 + MAX_CRASHES
    lost = [note for note in summary.notes if "node 7 is gone; it is submitted again" in note]
    assert len(lost) == MAX_CRASHES


def test_a_cluster_that_starts_no_run_ends_the_study(root: Path) -> None:
    executor = Inline(loses=1000)
    options = RunnerOptions(executor=executor, quiet=True)
    summary = run_study(toy_study([0, 1]), Store(root / "runs"), options)
    assert summary.exit_code == 4
    assert summary.message == "the cluster starts no run: node 7 is gone"
    assert max(map(executor.submitted.count, executor.submitted)) == MAX_CRASHES + 1
    assert (executor.cancelled, executor.closed, summary.missing) == (1, 1, 4)


def test_a_node_that_does_not_see_the_folder_ends_the_study(root: Path) -> None:
    executor = Inline(marker=str(root / "absent"))
    options = RunnerOptions(executor=executor, quiet=True)
    summary = run_study(toy_study([0]), Store(root / "runs"), options)
    assert summary.exit_code == 2
    assert "is not the folder of this study: expected a folder that all nodes" in summary.message
    assert starts(root) == {}


def test_locks_that_do_not_reach_other_machines_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = root / "mountinfo"
    mounts.write_text(f"22 1 8:1 / {root} rw - nfs4 server:/net rw,local_lock=all\n")
    monkeypatch.setattr(file_systems, "_MOUNTS", mounts)
    options = RunnerOptions(executor=Inline(), quiet=True)
    summary = run_study(toy_study([0]), Store(root / "runs"), options)
    assert [note for note in summary.notes if "(nfs4) is mounted with local_lock=all" in note]


def test_a_run_that_crashed_on_any_machine_is_not_taken_up_a_fifth_time(root: Path) -> None:
    study, store = toy_study([0]), Store(root / "runs")
    crashed = study.cells()[0]
    for _ in range(MAX_CRASHES + 1):
        child = os.fork()
        if not child:
            store.claim(crashed.run_key, run_identity(crashed.run))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    options = RunnerOptions(executor=Inline(), quiet=True)
    summary = run_study(study, store, options)
    assert (summary.done, summary.failed, summary.missing) == (1, 1, 0)
    assert crashed.run_key not in starts(root)
    record = store.record(crashed.run_key)
    assert record
    assert record.message.startswith("this run crashed 4 workers, the last was process ")


def test_runs_with_similar_needs_share_them() -> None:
    needs = {needed_resources(cell, 0.5) for cell in toy_study([0]).cells()}
    (one,) = needs
    assert (one.cores, one.gpus, one.memory_bytes) == (1, 0.0, PROCESS_BYTES + MEMORY_UNIT)
