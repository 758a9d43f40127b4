"""Nodes that do not see the store: finished runs return as results of their tasks."""

import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors import execution
from qkvary.studies.running.executors.contract import Ending, Resources, Task
from qkvary.studies.running.executors.execution import Execution
from qkvary.studies.running.ledger import RunSummary
from qkvary.studies.running.messages import Job
from qkvary.studies.running.recording import run_identity
from qkvary.studies.running.runner import RunnerOptions, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.running.work_loop import MAX_CRASHES
from qkvary.studies.study import Cell, Study
from tests.storage.quick_disk import quick_folder
from tests.studies import toy_worker
from tests.studies.running.executors.test_supervision import Inline
from tests.studies.toy_study import ends, leftovers, run_toy, starts, table, toy_study

root = pytest.fixture(quick_folder)
second_root = pytest.fixture(quick_folder)


@pytest.fixture
def node(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of the node."""
    path = root / "node"
    path.mkdir()
    monkeypatch.setattr(execution.tempfile, "tempdir", str(path))
    return path


def scratch(node: Path) -> Store:
    return Store(node / f"qkvary-{os.getuid()}")


class Returning(Inline):
    """A cluster whose nodes return finished runs; ``change`` changes the first endings."""

    def __init__(
        self, *changes: Callable[[Ending], Ending], runs_per_task: int = 1, loses: int = 0
    ) -> None:
        super().__init__(runs_per_task=runs_per_task, loses=loses, shared_folder=False)
        self.changes = list(changes)

    def collect(self, _seconds: float) -> Sequence[Ending]:
        (ending,) = super().collect(_seconds)
        return [self.changes.pop(0)(ending) if self.changes else ending]


def run(study: Study, root: Path, executor: Inline, **others: bool) -> RunSummary:
    options = RunnerOptions(executor=executor, quiet=True, **others)
    return run_study(study, Store(root / "runs"), options)


def check_equal(study: Study, root: Path, second_root: Path) -> None:
    run(study, second_root, Inline())
    assert table(study, root) == table(study, second_root)
    assert leftovers(root) == []


def test_finished_runs_return_and_nothing_is_left_on_the_node(
    root: Path, second_root: Path, node: Path
) -> None:
    study = toy_study(range(4))
    summary = run(study, root, Returning(runs_per_task=3))
    assert (summary.done, summary.executed, summary.exit_code) == (8, 8, 0)
    assert starts(root) == {}, "nothing was executed in the store of the study"
    assert set(ends(node).values()) == {1}
    assert scratch(node).keys() == ()
    assert [path for path in scratch(node).path.rglob("*") if path.is_file()] == []
    assert scratch(node).path.stat().st_mode & 0o777 == 0o700
    run_toy(study, second_root)
    assert table(study, root) == table(study, second_root)
    assert leftovers(root) == []


def flip(ending: Ending) -> Ending:
    middle = len(ending.runs) // 2
    changed = bytes(byte ^ (place == middle) for place, byte in enumerate(ending.runs))
    return replace(ending, runs=changed)


def cut(ending: Ending) -> Ending:
    return replace(ending, runs=ending.runs[:-40])


def exchange(ending: Ending) -> Ending:
    """The result of another task."""
    other = toy_study([9]).cells()[0]
    task = replace(ending.task, job=replace(ending.task.job, cells=(other,)))
    _, runs = Execution.of(task, toy_worker.train_cell)()
    return replace(ending, runs=runs)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(flip, "no sound file"), (cut, "no sound file"), (exchange, "not one of the task")],
)
def test_a_damaged_result_is_refused_and_its_run_repeated(
    change: Callable[[Ending], Ending], reason: str, root: Path, second_root: Path, node: Path
) -> None:
    study = toy_study([0])
    first, second = (cell.run_key for cell in study.cells())
    summary = run(study, root, Returning(change, lambda ending: ending, change))
    assert (summary.done, summary.executed, summary.exit_code) == (2, 2, 0)
    refused = [note for note in summary.notes if reason in note]
    assert len(refused) == 2
    assert all(note.endswith("; it is submitted again") for note in refused)
    assert (ends(node)[first], ends(node)[second]) == (3, 1)
    check_equal(study, root, second_root)


def test_results_that_are_always_damaged_end_the_study(root: Path, node: Path) -> None:
    summary = run(toy_study([0]), root, Returning(*[flip] * 99))
    assert (summary.exit_code, summary.done, summary.missing) == (4, 0, 2)
    assert "the cluster starts no run: the result of a task is no sound file" in summary.message
    assert list((root / "runs").rglob("record.json")) == []


def test_a_result_that_cannot_be_read_is_a_lost_task(root: Path) -> None:
    task = Task(
        numbers=(0,),
        job=Job(store=root, cells=(), checkpoint_seconds=1.0),
        resources=Resources(cores=1, gpus=0.0, memory_bytes=0),
        marker=None,
    )

    def fail() -> Any:
        raise EOFError

    damaged: list[Callable[[], Any]] = [fail, lambda: 3, lambda: ([b"?"], b"")]
    for load in damaged:
        ending = execution.read_ending(task, load)
        assert ending.error
        assert (ending.messages, ending.runs) == ((), b"")


def test_a_node_that_lacks_the_data_is_named(root: Path, node: Path) -> None:
    """Its runs that are finished return nevertheless."""
    study = toy_study([0])
    first, _second = study.cells()

    def train(cell: Cell, *others: Any) -> Any:
        if cell == first:
            return toy_worker.train_cell(cell, *others)
        raise UsageError("expected the data set 0123 of novels, got none")

    class Lacking(Returning):
        def collect(self, _seconds: float) -> Sequence[Ending]:
            task = self.tasks.pop(0)
            return [execution.read_ending(task, Execution.of(task, train))]

    summary = run(study, root, Lacking(runs_per_task=2))
    assert (summary.exit_code, summary.done, summary.missing) == (2, 1, 1)
    place = f"(on {socket.gethostname()})"
    assert summary.message == f"expected the data set 0123 of novels, got none {place}"


def lose(ending: Ending) -> Ending:
    return Ending(task=ending.task, error="node 7 is gone")


def test_a_run_whose_tasks_are_always_lost_fails_alone(
    root: Path, node: Path, second_root: Path
) -> None:
    study = toy_study(range(2))
    bad = study.cells()[1].run_key

    def lose_bad(ending: Ending) -> Ending:
        return lose(ending) if bad in [cell.run_key for cell in ending.task.job.cells] else ending

    executor = Returning(*[lose_bad] * 99, runs_per_task=3)
    summary = run(study, root, executor)
    assert (summary.done, summary.failed, summary.exit_code) == (3, 1, 0)
    assert [len(numbers) for numbers in executor.submitted] == [3, 1, 1, 1, 1, 1, 1]
    record = Store(root / "runs").record(bad)
    assert record
    assert record.message == "the tasks of this run were lost 4 times, the last: node 7 is gone"


def test_a_run_that_crashes_on_its_node_returns_as_failed(root: Path, node: Path) -> None:
    study = toy_study([0])
    crashed = study.cells()[0]
    scratch(node).path.mkdir(mode=0o700)
    for _ in range(MAX_CRASHES + 1):
        child = os.fork()
        if not child:
            scratch(node).claim(crashed.run_key, run_identity(crashed.run))
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    summary = run(study, root, Returning())
    assert (summary.done, summary.failed, summary.missing) == (1, 1, 0)
    assert crashed.run_key not in starts(node)
    record = Store(root / "runs").record(crashed.run_key)
    assert record
    assert record.message.startswith("this run crashed 4 workers, the last was process ")
    assert scratch(node).keys() == ()


def test_a_run_that_fails_returns_and_is_retried(root: Path, node: Path) -> None:
    study = toy_study([0, toy_worker.RAISES])
    summary = run(study, root, Returning(runs_per_task=4))
    assert (summary.done, summary.failed) == (2, 2)
    assert [note for note in summary.notes if "RuntimeError: the run went wrong" in note]
    again = run(study, root, Returning(), retry_failed=True)
    assert (again.done, again.failed, again.executed) == (2, 2, 2)
    failed = [cell.run_key for cell in study.cells() if cell.seed == toy_worker.RAISES]
    assert [starts(node)[key] for key in failed] == [2, 2]


def test_a_stopped_run_is_resumed_on_its_node(
    root: Path, second_root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job did until it was cancelled returns; its node keeps a checkpoint of the rest."""
    study = toy_study([0])
    first, second = study.cells()

    def train(cell: Cell, *others: Any) -> Any:
        if cell == second:
            os.kill(os.getpid(), signal.SIGINT)
        return toy_worker.train_cell(cell, *others)

    class Stopping(Returning):
        def collect(self, _seconds: float) -> Sequence[Ending]:
            task = self.tasks.pop(0)
            ending = execution.read_ending(task, Execution.of(task, train))
            os.kill(os.getpid(), signal.SIGTERM)
            return [ending]

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        summary = run(study, root, Stopping(runs_per_task=2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (summary.done, summary.missing, summary.exit_code) == (1, 1, 128 + signal.SIGTERM)
    kept = scratch(node)
    assert kept.keys() == (second.run_key,)
    assert list((kept.directory(second.run_key) / "checkpoints").iterdir())
    assert run(study, root, Returning()).executed == 1
    assert (starts(node)[first.run_key], starts(node)[second.run_key]) == (1, 2)
    check_equal(study, root, second_root)


def test_a_run_that_another_process_trains_is_left_to_it(
    root: Path, node: Path, second_root: Path
) -> None:
    study, store = toy_study([0]), Store(root / "runs")
    first = study.cells()[0]
    claims = [store.claim(first.run_key, run_identity(first.run))]

    def release(ending: Ending) -> Ending:
        (claim,) = claims
        assert claim
        claim.release()
        return ending

    summary = run(study, root, Returning(*[lambda ending: ending] * 2, release))
    assert (summary.done, summary.exit_code) == (2, 0)
    assert [note for note in summary.notes if "is in use by process" in note]
    check_equal(study, root, second_root)


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio"])
def test_a_log_in_files_of_a_node_is_refused(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: True)
    with pytest.raises(UsageError, match=f"expected log wandb without .* got {tracker}, which"):
        RunnerOptions(executor=Returning(), tracker=tracker)  # type: ignore[arg-type]
    RunnerOptions(executor=Returning(), tracker="wandb")


def test_the_folder_of_another_user_is_refused(
    root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution.os, "getuid", lambda: 4321)
    summary = run(toy_study([0]), root, Returning())
    assert summary.exit_code == 2
    assert "qkvary-4321 belongs to another user: set TMPDIR to a folder of" in summary.message
