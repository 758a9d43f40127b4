"""Nodes that do not see the store: finished runs return as results of their tasks."""

import os
import re
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.environment import now
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors import execution
from qkvary.studies.running.executors.contract import Ending, Resources, Task
from qkvary.studies.running.executors.execution import Execution
from qkvary.studies.running.ledger import RunSummary
from qkvary.studies.running.messages import Job
from qkvary.studies.running.recording import make_record, run_identity
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
    return Store(node / execution.folder_name(node.parent / "runs"))


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
    [
        (flip, "expected packed runs in the result of a task"),
        (cut, "expected packed runs"),
        (exchange, "not one of the task"),
    ],
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
    assert (
        "were lost 4 times, the last: expected packed runs in the result of a task"
        in summary.message
    )
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

    executor = Returning(lambda ending: ending, release)
    summary = run(study, root, executor)
    assert (summary.done, summary.executed, summary.exit_code) == (2, 2, 0)
    assert len(executor.submitted) == 2, "the result waits; the run is not repeated"
    assert [note for note in summary.notes if "is in use by process" in note]
    check_equal(study, root, second_root)


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio"])
def test_a_log_in_files_of_a_node_is_refused(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: True)
    with pytest.raises(UsageError, match=f"expected --log wandb with .* got {tracker}, which"):
        RunnerOptions(executor=Returning(), tracker=tracker)  # type: ignore[arg-type]
    RunnerOptions(executor=Returning(), tracker="wandb")


def test_the_folder_of_another_user_is_refused(
    root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution.os, "getuid", lambda: 4321)
    summary = run(toy_study([0]), root, Returning())
    assert summary.exit_code == 2
    assert re.search(
        "qkvary-4321-[0-9a-f]{16} belongs to another user: set TMPDIR", summary.message
    )


def test_a_run_that_ends_and_does_not_return_is_repeated(
    root: Path, second_root: Path, node: Path
) -> None:
    study = toy_study([0])
    executor = Returning(lambda ending: replace(ending, runs=b""))
    summary = run(study, root, executor)
    assert (summary.done, summary.executed, summary.exit_code) == (2, 2, 0)
    assert len(executor.submitted) == 3
    assert [note for note in summary.notes if "no result returned; it is submitted again" in note]
    check_equal(study, root, second_root)


def test_a_run_that_ended_elsewhere_counts_only_with_its_result(root: Path, node: Path) -> None:
    def took_another(ending: Ending) -> Ending:
        messages = [replace(message, kind="elsewhere") for message in ending.messages]
        return replace(ending, messages=tuple(messages), runs=b"")

    summary = run(toy_study([0]), root, Returning(took_another))
    assert (summary.done, summary.exit_code) == (2, 0)
    assert len(list((root / "runs").rglob("record.json"))) == 2


def test_studies_of_two_folders_do_not_share_runs_on_a_node(root: Path) -> None:
    names = {execution.folder_name(root / name) for name in ("one", "two")}
    assert len(names) == 2


def test_a_result_that_waits_yields_to_that_of_the_other_process(root: Path, node: Path) -> None:
    study, store = toy_study([0]), Store(root / "runs")
    first = study.cells()[0]
    claim = store.claim(first.run_key, run_identity(first.run))
    assert claim

    def finish(ending: Ending) -> Ending:
        claim.finish(make_record(first, status="failed", started=now(), message="theirs"))
        return ending

    summary = run(study, root, Returning(lambda ending: ending, finish))
    assert (summary.done, summary.failed, summary.executed) == (1, 1, 1)
    record = store.record(first.run_key)
    assert record
    assert record.message == "theirs"


def test_a_run_damaged_on_its_node_is_repeated(
    root: Path, second_root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, take_runs = toy_study([0]), execution._take_runs
    first = study.cells()[0].run_key
    damaged = list[str]()

    def take(job: Job) -> bytes:
        if not damaged:
            damaged.append(first)
            path = Store(job.store).directory(first) / "metrics.jsonl"
            path.write_bytes(path.read_bytes()[:-2])
        return take_runs(job)

    monkeypatch.setattr(execution, "_take_runs", take)
    summary = run(study, root, Returning(runs_per_task=2))
    assert (summary.done, summary.exit_code) == (2, 0)
    assert ends(node)[first] == 2
    check_equal(study, root, second_root)


def test_only_a_run_that_is_too_large_fails(
    root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = toy_study([0])
    large = study.cells()[0].run_key
    monkeypatch.setattr(
        execution, "find_excess", lambda _store, key: "too large" if key == large else None
    )
    summary = run(study, root, Returning(runs_per_task=2))
    assert (summary.done, summary.failed, summary.exit_code) == (1, 1, 0)
    record = Store(root / "runs").record(large)
    assert record
    assert record.message == "too large"


def test_an_interrupt_claims_no_run_of_the_store(root: Path, node: Path) -> None:
    class Stopping(Returning):
        def collect(self, _seconds: float) -> Sequence[Ending]:
            if not self.cancelled:
                os.kill(os.getpid(), signal.SIGTERM)
                return []
            return super().collect(_seconds)

    summary = run(toy_study([0]), root, Stopping())
    assert (summary.missing, summary.exit_code) == (2, 128 + signal.SIGTERM)
    assert Store(root / "runs").keys() == ()


def test_networks_are_checked_before_and_the_executor_is_closed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_cells: object) -> None:
        raise UsageError("too large")

    monkeypatch.setattr("qkvary.studies.running.executors.supervision.check_networks", refuse)
    executor = Returning()
    with pytest.raises(UsageError, match="too large"):
        run(toy_study([0]), root, executor)
    assert executor.closed == 1


def test_a_lost_scheduler_is_no_lost_task(root: Path) -> None:
    def fail() -> Any:
        raise ConnectionError("the cluster is gone")

    job = Job(store=root, cells=(), checkpoint_seconds=1.0)
    needs = Resources(cores=1, gpus=0.0, memory_bytes=0)
    with pytest.raises(ConnectionError, match="the cluster is gone"):
        execution.read_ending(Task(numbers=(), job=job, resources=needs, marker=None), fail)

    class Disconnected(Returning):
        def collect(self, _seconds: float) -> Sequence[Ending]:
            return fail()

    executor = Disconnected()
    summary = run(toy_study([0]), root, executor)
    assert (summary.exit_code, summary.missing, executor.closed) == (4, 2, 1)
    assert summary.message == "the scheduler cannot be reached: the cluster is gone"
