"""The runner with a toy worker: kills, crashes, several runners, failed runs and signals."""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from qkvary.storage.durable import read_note
from qkvary.studies.running import runner
from qkvary.studies.running.cells import MAX_CRASHES
from qkvary.studies.running.executors import local
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import StudyRunner
from qkvary.studies.running.store import LOCK_NAME, Store
from qkvary.text.progress_line import Display
from tests.storage.damage import trials
from tests.studies.toy_study import (
    check_equal,
    end_runner,
    ends,
    leftovers,
    run_toy,
    start_runner,
    starts,
    stored_record,
    table,
    toy_study,
)
from tests.studies.toy_worker import CRASHES, DISK_FULL, DIVERGES, RAISES, TALKS, executions


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_every_run_is_made_once_and_never_again(root: Path) -> None:
    study = toy_study(range(2))
    summary = run_toy(study, root)
    assert (summary.planned, summary.done, summary.executed, summary.missing) == (4, 4, 4, 0)
    assert (summary.exit_code, summary.message, summary.notes) == (0, "", ())
    before = table(study, root)
    again = run_toy(study, root)
    assert (again.done, again.executed, again.exit_code) == (4, 0, 0)
    assert table(study, root) == before
    assert set(ends(root).values()) == set(starts(root).values()) == {1}
    assert len(executions(root)) == 8
    assert leftovers(root) == []


def test_progress_is_a_line_and_a_failed_run_is_said_at_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed unless the caller asks for it."""
    said, shown = list[str](), list[tuple[int, int, str]]()

    def show_progress(what: str, unit: str) -> Display:
        assert (what, unit) == ("running", "runs")
        return nullcontext(lambda *values: shown.append(values))

    run_toy(toy_study([0, RAISES]), root, say=said.append, show_progress=show_progress)
    assert len(said) == 2
    assert all("failed, RuntimeError: the run went wrong" in line for line in said)
    assert {total for _, total, _ in shown} == {4}
    run_toy(toy_study([1, RAISES]), root)
    assert capsys.readouterr().err == ""


def test_results_are_published_while_runs_remain(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PUBLISH_SECONDS", 0.0)
    monkeypatch.setattr(runner, "PUBLISH_SHARE", 1e9)
    study, store = toy_study(range(3)), Store(root / "runs")
    done: list[int] = []

    def publish() -> None:
        done.append(sum(store.state(cell.run_key) == "done" for cell in study.cells()))

    assert run_toy(study, root, 1, publish=publish).exit_code == 0
    # A run may have been written when the one before it is announced.
    assert done == sorted(done)
    assert len(done) < 6
    assert 1 <= done[0] < done[-1]
    assert done[0] < 6


def test_failed_and_diverged_runs_do_not_stop_the_others(root: Path) -> None:
    """What failed is made again on request."""
    study = toy_study([0, RAISES, DIVERGES, TALKS])
    summary = run_toy(study, root)
    assert (summary.done, summary.failed, summary.diverged, summary.missing) == (4, 2, 2, 0)
    assert summary.exit_code == 0
    records = [Store(root / "runs").record(cell.run_key) for cell in study.cells()]
    messages = {record.message for record in records if record and record.status == "failed"}
    (message,) = messages
    assert re.fullmatch(r"RuntimeError: the run went wrong \(toy_worker\.py, line \d+\)", message)
    assert all(record.metric == "test_accuracy" for record in records if record)
    assert any("failed, RuntimeError: the run went wrong" in note for note in summary.notes)
    assert set(starts(root).values()) == {1}
    assert run_toy(study, root, retry_failed=True).executed == 2
    assert sorted(starts(root).values()) == [1] * 6 + [2, 2]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_run_that_crashes_workers_counts_as_failed(
    root: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each crash is reported and another worker resumes; the fourth fails the run.

    The other worker waits for the run while it crashes, and must not take it up a fifth time.
    """
    # A forked worker also prints the stack of the test that it was forked from.
    monkeypatch.setattr(local, "TAIL_BYTES", 40_000)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.001)
    study = toy_study([0, CRASHES])
    summary = run_toy(study, root, workers=workers)
    assert (summary.done, summary.failed, summary.exit_code) == (2, 2, 0)
    keys = [cell.run_key for cell in study.cells() if cell.seed == CRASHES]
    assert [starts(root)[key] for key in keys] == [MAX_CRASHES + 1] * 2
    deaths = [note for note in summary.notes if "it is submitted again" in note]
    assert len(deaths) == 2 * (MAX_CRASHES + 1)
    record = stored_record(Store(root / "runs"), keys[0])
    assert record.message.startswith(f"this run crashed {MAX_CRASHES + 1} workers, the last: ")
    assert "signal SIGSEGV" in record.message
    assert "last words of the worker" in record.message


def test_a_full_disk_ends_the_study_and_leaves_the_run_open(root: Path) -> None:
    study = toy_study([0, DISK_FULL, 1])
    summary = run_toy(study, root, workers=1)
    assert summary.exit_code == 4
    assert "the disk is full; free some space" in summary.message
    states = {cell.seed: Store(root / "runs").state(cell.run_key) for cell in study.cells()}
    assert states[DISK_FULL] == "open"
    assert summary.missing >= 2


@pytest.mark.usefixtures("started_workers")
def test_started_workers_make_every_run(root: Path) -> None:
    assert run_toy(toy_study([0]), root).executed == 2


@pytest.mark.usefixtures("started_workers")
def test_workers_that_never_come_to_life_end_the_study(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WORKER", "tests.studies.absent")
    summary = StudyRunner(toy_study([0, 1]), Store(root / "runs"), executor=LocalExecutor(2)).run()
    assert summary.exit_code == 4
    assert "exit code 1" in summary.message
    assert "No module named" in summary.message
    assert summary.missing == 4


def killed_sweep(root: Path, seeds: range, generator: random.Random, step_seconds: float) -> int:
    """Kill runners and workers until the study is complete; return how many were killed."""
    kills = 0
    # The first kill waits for runs instead of seconds, so that it comes on a fast machine too.
    begun = generator.randrange(1, len(seeds))
    for _ in range(100):
        runner = start_runner(root, seeds, step_seconds=step_seconds)
        # What is killed: nothing, the runner, or one of its workers (twice as often).
        deadline = time.monotonic() + generator.uniform(0.1, 0.8)
        while runner.poll() is None and kills < 12:
            if kills and time.monotonic() > deadline + 5:
                break
            time.sleep(0.02)
            waiting = len(starts(root)) < begun if kills == 0 else time.monotonic() < deadline
            if waiting:
                continue
            workers = [int(pid) for what, _key, pid in executions(root)[-4:] if what == "start"]
            victim = generator.choice([runner.pid, *workers])
            if is_ours(victim):
                os.kill(victim, signal.SIGKILL)
                kills += 1
            deadline = time.monotonic() + generator.uniform(0.1, 0.5)
            if victim == runner.pid:
                break
        code, said = end_runner(runner)
        assert code in (0, -9), said
        if code == 0:
            return kills
    raise AssertionError("the study never ended")


def is_ours(pid: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_sweep_whose_processes_are_killed_ends_like_any_other(root: Path) -> None:
    """Every run has one record, and the table is the same, byte for byte."""
    seeds = range(6)
    killed, count = 0, trials("SWEEPS", 1)
    for trial in range(count):
        place = root / str(trial)
        place.mkdir()
        killed += killed_sweep(place, seeds, random.Random(trial), 0.01)
        check_equal(toy_study(seeds), place)
    assert killed >= count


@pytest.mark.parametrize(
    ("runners", "runs"), [(3, 8), pytest.param(8, 100, marks=pytest.mark.slow)]
)
def test_runners_that_begin_at_once_share_the_work(root: Path, runners: int, runs: int) -> None:
    """No run is made twice, and none is left out; the store does not exist yet."""
    seeds = range(runs // 2)
    started = [
        start_runner(root, seeds, steps=3, workers=1, step_seconds=0.002) for _ in range(runners)
    ]
    for code, said in map(end_runner, started):
        assert code == 0, said
    assert sorted(starts(root).values()) == [1] * runs
    study = toy_study(seeds, steps=3)
    check_equal(study, root)


def test_a_paused_worker_keeps_its_run(root: Path) -> None:
    """Another runner reports the owner and waits; no run is executed twice."""
    first = start_runner(root, [7], steps=40, workers=1, step_seconds=0.02)
    wait_for(lambda: executions(root))
    worker = int(executions(root)[0][2])
    os.kill(worker, signal.SIGSTOP)
    second = start_runner(root, [7], steps=40, workers=1, step_seconds=0.0)
    wait_for(lambda: len(ends(root)) == 1)
    time.sleep(0.7)
    assert second.poll() is None, "the second runner waits for the run that is held"
    assert len(starts(root)) == 2
    os.kill(worker, signal.SIGCONT)
    ended = [end_runner(runner) for runner in (first, second)]
    for (code, said), says in zip(ended, (False, True), strict=True):
        assert code == 0, said
        assert (f"waiting for process {worker} on " in said) == says
    assert sorted(starts(root).values()) == [1, 1]
    assert len(table(toy_study([7], steps=40), root)) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_of_a_lost_worker_resumes_from_its_checkpoint(
    root: Path, number: signal.Signals
) -> None:
    """The lock is free at once, and no saved step is repeated."""
    runner = start_runner(root, [7], steps=60, workers=1, step_seconds=0.01)
    key = toy_study([7], steps=60).cells()[0].run_key
    store = Store(root / "runs")
    wait_for((store.directory(key) / "checkpoints" / f"step-{20:012d}").exists)
    os.kill(int(executions(root)[0][2]), number)
    code, said = end_runner(runner)
    assert code == 0, said
    assert ("crashed with signal SIGKILL; it is submitted again" in said) == (
        number == signal.SIGKILL
    )
    (resumed,) = [event["step"] for event in store.log_events(key) if event["event"] == "resumed"]
    assert resumed >= 20
    assert sorted(ends(root).values()) == [1, 1]


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_saves_checkpoints_and_the_study_can_be_resumed(
    root: Path, number: signal.Signals
) -> None:
    """Each worker leaves a checkpoint; the exit code names the signal."""
    runner = start_runner(root, [7], steps=100, step_seconds=0.01)
    wait_for(lambda: len(executions(root)) == 2)
    time.sleep(0.2)
    os.kill(runner.pid, number)
    code, said = end_runner(runner)
    assert code == 128 + number, said
    assert "waiting" not in said
    study = toy_study([7], steps=100)
    for cell in study.cells():
        directory = Store(root / "runs").directory(cell.run_key)
        assert Store(root / "runs").state(cell.run_key) == "open"
        assert list((directory / "checkpoints").iterdir())
    assert ends(root) == {}
    run_toy(study, root)
    check_equal(study, root)
    resumed = [
        event
        for cell in study.cells()
        for event in Store(root / "runs").log_events(cell.run_key)
        if event["event"] == "resumed"
    ]
    assert len(resumed) == 2


def test_a_second_signal_ends_at_once(root: Path) -> None:
    """A worker that does not react is ended, and its run is not lost."""
    runner = start_runner(root, [7], steps=60, workers=1, step_seconds=0.01)
    wait_for(lambda: len(executions(root)) == 1)
    worker = int(executions(root)[0][2])
    os.kill(worker, signal.SIGSTOP)
    os.kill(runner.pid, signal.SIGINT)
    time.sleep(0.7)
    assert runner.poll() is None
    os.kill(runner.pid, signal.SIGINT)
    code, said = end_runner(runner)
    assert code == 130, said
    study = toy_study([7], steps=60)
    # It is no crash of the run.
    store = Store(root / "runs")
    notes = [read_note(store.directory(key) / LOCK_NAME) for key in study.runs()]
    assert [note.count_deaths(note.progress) for note in notes] == [0] * len(notes)
    run_toy(study, root)
    check_equal(study, root)


def test_workers_end_when_their_runner_was_killed(root: Path) -> None:
    runner = start_runner(root, [7], steps=2000, step_seconds=0.01)
    wait_for(lambda: len(executions(root)) == 2)
    workers = [int(pid) for _what, _key, pid in executions(root)]
    runner.kill()
    end_runner(runner)
    wait_for(lambda: not any(map(is_ours, workers)))
    for cell in toy_study([7], steps=2000).cells():
        assert Store(root / "runs").state(cell.run_key) == "open"


def test_what_a_killed_worker_could_not_tidy_is_tidied(root: Path) -> None:
    study = toy_study([0])
    run_toy(study, root)
    directory = Store(root / "runs").directory(study.cells()[0].run_key)
    (directory / "checkpoints" / "step-000000000004").mkdir(parents=True)
    assert run_toy(study, root).executed == 0
    assert leftovers(root) == []
    assert len(table(study, root)) == 2
