"""Tasks of a cluster, executed in this process by an executor of the test."""

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from qkvary.storage import file_systems
from qkvary.storage.locks import read_note
from qkvary.studies.running.executors import supervision
from qkvary.studies.running.executors.contract import ClusterOptions, Ending, Resources, Task
from qkvary.studies.running.executors.execution import (
    MEMORY_UNIT,
    PROCESS_BYTES,
    Execution,
    needed_resources,
    read_ending,
)
from qkvary.studies.running.executors.supervision import ClusterTasks
from qkvary.studies.running.ledger import Ledger
from qkvary.studies.running.messages import Job
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

    def __init__(
        self,
        *,
        runs_per_task: int = 1,
        loses: int = 0,
        marker: str = "",
        shared_folder: bool = True,
    ) -> None:
        self.runs_per_task, self.loses, self.marker = runs_per_task, loses, marker
        self.shared_folder = shared_folder
        self.tasks: list[Task] = []
        self.submitted: list[tuple[int, ...]] = []
        self.cancelled = self.killed = self.closed = 0
        self.after_loss: Callable[[], None] = lambda: None

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
            self.after_loss()
            return [Ending(task=task, error="node 7 is gone")]
        execution = replace(
            Execution.of(task, toy_worker.train_cell), marker=self.marker or task.marker
        )
        return [read_ending(task, execution)]

    def cancel(self, *, now: bool = False) -> None:
        self.cancelled += not now
        self.killed += now

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


class Broken(Inline):
    """A scheduler that fails at one of the calls."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def submit(self, tasks: Sequence[Task]) -> None:
        super().submit(tasks)
        if self.at == "submit":
            raise RuntimeError("the scheduler is gone")

    def collect(self, _seconds: float) -> Sequence[Ending]:
        raise RuntimeError("the scheduler is gone")


@pytest.mark.parametrize("at", ["submit", "collect"])
def test_what_was_submitted_is_cancelled_whatever_fails(at: str, root: Path) -> None:
    executor = Broken(at)
    with pytest.raises(RuntimeError, match="the scheduler is gone"):
        run_study(
            toy_study([0]), Store(root / "runs"), RunnerOptions(executor=executor, quiet=True)
        )
    assert (len(executor.submitted), executor.cancelled, executor.closed) == (2, 1, 1)
    assert not list((root / "runs").glob("cluster-*"))


class Stubborn(Inline):
    """Its tasks hold the lock of their run, and end only when they are killed."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.children: list[int] = []

    def collect(self, _seconds: float) -> Sequence[Ending]:
        if not self.children:
            for task in self.tasks:
                cell = task.job.cells[0]
                child = os.fork()
                if not child:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    self.store.claim(cell.run_key, run_identity(cell.run))
                    time.sleep(60)
                    os._exit(0)
                self.children.append(child)
                while self.store.state(cell.run_key) != "running":
                    time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
        return []

    def cancel(self, *, now: bool = False) -> None:
        super().cancel(now=now)
        for child in self.children if now else ():
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_tasks_that_are_killed_on_purpose_have_not_crashed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, store = toy_study([0]), Store(root / "runs")
    monkeypatch.setattr(supervision, "CHECKPOINT_SECONDS", 0.0)
    executor = Stubborn(store)
    summary = run_study(study, store, RunnerOptions(executor=executor, quiet=True))
    assert (summary.exit_code, summary.missing) == (130, 2)
    assert (executor.cancelled, executor.killed) == (1, 1)
    for cell in study.cells():
        claim = store.claim(cell.run_key, run_identity(cell.run))
        assert claim is not None
        assert claim.deaths == 0
        claim.release()


def test_a_second_signal_kills_the_tasks_and_forgets_their_deaths(
    root: Path, request: pytest.FixtureRequest
) -> None:
    # A process in the background is started with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    study, store = toy_study([0]), Store(root / "runs")
    executor = Stubborn(store)
    ledger = Ledger(study.cells(), store)
    job = Job(store=store.path, cells=ledger.cells, checkpoint_seconds=1.0)
    tasks = ClusterTasks(ledger, job, executor)
    executor.tasks = [
        Task(
            numbers=(n,), job=replace(job, cells=(cell,)), resources=executor.needs(cell), marker=""
        )
        for n, cell in enumerate(ledger.cells)
    ]
    with pytest.raises(KeyboardInterrupt):
        executor.collect(0.0)
    tasks.kill()
    assert executor.killed == 1
    notes = [read_note(store.directory(cell.run_key) / "run.lock") for cell in ledger.cells]
    assert [(note.owner, note.deaths) for note in notes] == [(None, 0)] * 2


def test_the_markers_of_killed_runners_are_removed(root: Path) -> None:
    runs = root / "runs"
    runs.mkdir()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    host = socket.gethostname()
    names = [f"cluster-{host}-{child}-1", f"cluster-{host}-{os.getpid()}-1", f"cluster-x-{child}-1"]
    for name in names:
        (runs / name).touch()
    run_study(toy_study([0]), Store(runs), RunnerOptions(executor=Inline(), quiet=True))
    assert sorted(path.name for path in runs.glob("cluster-*")) == sorted(names[1:])


def test_the_time_left_counts_the_runs_that_are_executed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "KILL_SECONDS", 0.0)
    study, store = toy_study(range(2)), Store(root / "runs")
    held = [store.claim(cell.run_key, run_identity(cell.run)) for cell in study.cells()[:3]]
    ledger = Ledger(study.cells(), store)
    executor = Inline(loses=1)
    executor.after_loss = lambda: ledger.abort(4, "enough")
    job = Job(store=store.path, cells=ledger.cells, checkpoint_seconds=1.0)
    ClusterTasks(ledger, job, executor).supervise()
    assert ledger.parallel == 3
    for claim in held:
        assert claim is not None
        claim.release()


def test_a_run_on_a_device_has_main_memory_too() -> None:
    (cell, *_) = toy_study([0]).cells()
    there = replace(cell, run=replace(cell.run, device="cuda"))
    needs = needed_resources(there, 0.5)
    assert (needs.gpus, needs.memory_bytes) == (0.5, 4 * 2**30)
    large = replace(
        there, run=replace(there.run, training=replace(there.run.training, batch_size=10**9))
    )
    on_cpu = replace(large, run=replace(large.run, device="cpu"))
    assert needed_resources(large, 1.0).memory_bytes >= needed_resources(on_cpu, 1.0).memory_bytes
    assert needed_resources(on_cpu, 1.0).memory_bytes > 4 * 2**30


def test_a_share_of_gpus_above_one_is_whole() -> None:
    assert ClusterOptions(gpu_share=2.0).gpu_share == 2.0
    for share in (1.5, 0.0, 9.0):
        with pytest.raises(ValueError, match="gpu_share must be "):
            ClusterOptions(gpu_share=share)


def test_runs_with_similar_needs_share_them() -> None:
    needs = {needed_resources(cell, 0.5) for cell in toy_study([0]).cells()}
    (one,) = needs
    assert (one.cores, one.gpus, one.memory_bytes) == (1, 0.0, PROCESS_BYTES + MEMORY_UNIT)
