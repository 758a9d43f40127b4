"""Nodes that do not see the store: finished runs return as results of their tasks."""

import os
import re
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.errors import UsageError
from qkvary.studies.running.cells import MAX_CRASHES, record_failure
from qkvary.studies.running.executors import task as task_module
from qkvary.studies.running.executors.contract import Task, TaskEnd
from qkvary.studies.running.executors.task import execute_task
from qkvary.studies.running.runner import RunnerOptions
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell
from tests.studies import toy_worker
from tests.studies.running.executors.inline import Change, Inline, keep, lose, run_there, trainer
from tests.studies.toy_study import check_equal, claim_cell, ends, starts, stored_record, toy_study


@pytest.fixture
def node(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of the node."""
    path = root / "node"
    path.mkdir()
    monkeypatch.setattr(task_module.tempfile, "tempdir", str(path))
    return path


def scratch(node: Path) -> Store:
    return Store(node / task_module.scratch_name(node.parent / "runs"))


def returning(*changes: Change, runs_per_task: int = 1) -> Inline:
    """A cluster whose nodes return finished runs."""
    return Inline(*changes, runs_per_task=runs_per_task, shared_folder=False)


def test_finished_runs_return_and_nothing_is_left_on_the_node(root: Path, node: Path) -> None:
    study = toy_study(range(4))
    summary = run_there(study, root, returning(runs_per_task=3))
    assert (summary.done, summary.executed, summary.exit_code) == (8, 8, 0)
    assert starts(root) == {}, "nothing was executed in the store of the study"
    assert set(ends(node).values()) == {1}
    assert scratch(node).keys() == ()
    assert [path for path in scratch(node).path.rglob("*") if path.is_file()] == []
    assert scratch(node).path.stat().st_mode & 0o777 == 0o700
    check_equal(study, root)


def drop(_task: Task, end: TaskEnd) -> TaskEnd:
    return replace(end, runs=())


def exchange(task: Task, end: TaskEnd) -> TaskEnd:
    """The result of another task."""
    other = execute_task(replace(task, cells=toy_study([9]).cells()[:1]))
    return replace(end, runs=other.runs)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (exchange, "not one of the task"),
        (drop, "no result returned"),
    ],
)
def test_a_result_that_is_not_the_tasks_is_refused_and_its_run_repeated(
    change: Change, reason: str, root: Path, node: Path
) -> None:
    study = toy_study([0])
    summary = run_there(study, root, returning(change, keep, change))
    assert (summary.done, summary.executed, summary.exit_code) == (2, 2, 0)
    assert len([note for note in summary.notes if reason in note]) == 2
    first, second = (ends(node)[cell.run_key] for cell in study.cells())
    assert (first, second) == (3, 1)
    check_equal(study, root)


def test_a_node_that_lacks_the_data_is_named(
    root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs that are finished return nevertheless."""
    study = toy_study([0])
    first, _second = study.cells()

    def train(cell: Cell, *others: Any, **given: Any) -> Any:
        if cell == first:
            return toy_worker.train_cell(cell, *others, **given)
        raise UsageError("expected the data set 0123 of novels, got none")

    executor = returning(runs_per_task=2)
    summary = run_there(study, root, executor, trainer=trainer(monkeypatch, train))
    assert (summary.exit_code, summary.done, summary.missing) == (2, 1, 1)
    assert "expected the data set 0123" in summary.message
    assert socket.gethostname() in summary.message


def test_a_run_whose_tasks_are_always_lost_fails_alone(root: Path, node: Path) -> None:
    study = toy_study(range(2))
    bad = study.cells()[1].run_key

    def lose_bad(task: Task, end: TaskEnd) -> TaskEnd:
        return lose(task, end) if bad in [cell.run_key for cell in task.cells] else end

    executor = returning(*[lose_bad] * 99, runs_per_task=3)
    summary = run_there(study, root, executor)
    assert (summary.done, summary.failed, summary.exit_code) == (3, 1, 0)
    assert sorted(map(len, executor.submitted)) == [1, 1, 1, 1, 1, 1, 3]
    record = stored_record(Store(root / "runs"), bad)
    assert "lost 4 times, the last: RuntimeError: node 7 is gone" in record.message


def test_a_run_that_crashes_on_its_node_returns_as_failed(root: Path, node: Path) -> None:
    study = toy_study([0])
    crashed = study.cells()[0]
    scratch(node).path.mkdir(mode=0o700)
    for _ in range(MAX_CRASHES + 1):
        child = os.fork()
        if not child:
            scratch(node).claim(crashed.run_key, crashed.run.identity())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
    summary = run_there(study, root, returning())
    assert (summary.done, summary.failed, summary.missing) == (1, 1, 0)
    assert crashed.run_key not in starts(node)
    record = stored_record(Store(root / "runs"), crashed.run_key)
    assert record.message.startswith("this run crashed 4 workers, the last was process ")
    assert scratch(node).keys() == ()


def test_a_stopped_run_is_resumed_on_its_node(
    root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job did until it was cancelled returns; its node keeps a checkpoint of the rest."""
    study = toy_study([0])
    first, second = study.cells()

    def train(cell: Cell, *others: Any, **given: Any) -> Any:
        if cell == second:
            os.kill(os.getpid(), signal.SIGINT)
        return toy_worker.train_cell(cell, *others, **given)

    def stop_runner(_task: Task, end: TaskEnd) -> TaskEnd:
        os.kill(os.getpid(), signal.SIGTERM)
        return end

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    executor = returning(stop_runner, runs_per_task=2)
    try:
        summary = run_there(study, root, executor, trainer=trainer(monkeypatch, train))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (summary.done, summary.missing, summary.exit_code) == (1, 1, 128 + signal.SIGTERM)
    kept = scratch(node)
    assert kept.keys() == (second.run_key,)
    assert list((kept.directory(second.run_key) / "checkpoints").iterdir())
    assert run_there(study, root, returning()).executed == 1
    assert (starts(node)[first.run_key], starts(node)[second.run_key]) == (1, 2)
    check_equal(study, root)


@pytest.mark.parametrize("theirs", [False, True])
def test_a_result_yields_to_the_process_that_holds_its_run(
    theirs: bool, root: Path, node: Path
) -> None:
    study, store = toy_study([0]), Store(root / "runs")
    first = study.cells()[0]
    claim = claim_cell(store, first)

    def end_theirs(text: str) -> None:
        if not text.startswith("waiting for process"):
            return
        if theirs:
            record_failure(claim, first, "theirs")
        else:
            claim.release()

    executor = returning()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "qkvary.studies.running.live.Display.note", lambda _self, text: end_theirs(text)
        )
        summary = run_there(study, root, executor)
    assert len(executor.submitted) == 2 + (not theirs), "it is repeated if the other gave it up"
    assert (summary.done, summary.failed, summary.executed) == (2 - theirs, theirs, 2 - theirs)
    record = stored_record(store, first.run_key)
    assert (record.message == "theirs") == theirs


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio"])
def test_a_log_in_files_of_a_node_is_refused(tracker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.storage.packages.find_spec", lambda _name: True)
    with pytest.raises(UsageError, match=f"got {tracker}, which"):
        RunnerOptions(executor=returning(), tracker=tracker)  # type: ignore[arg-type]
    RunnerOptions(executor=returning(), tracker="wandb")


def test_the_folder_of_another_user_is_refused(
    root: Path, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module.os, "getuid", lambda: 4321)
    summary = run_there(toy_study([0]), root, returning())
    assert summary.exit_code == 2
    assert re.search("qkvary-4321-[0-9a-f]{16} belongs to another user", summary.message)
