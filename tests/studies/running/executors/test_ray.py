"""A Ray cluster of two nodes on loopback."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.executors.ray import RayExecutor, passed_on
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from tests.studies import toy_worker
from tests.studies.running.executors.loopback import Loopback
from tests.studies.toy_study import TOY_WORKER, check_equal, ends, run_toy, starts, toy_study

pytestmark = pytest.mark.cluster


@pytest.fixture
def run(cluster: Loopback, tmp_path: Path) -> Callable[..., RunSummary]:
    cluster.complete()

    def run_there(study: Study, **chosen: Any) -> RunSummary:
        executor = RayExecutor(ClusterOptions(address=cluster.address, **chosen))
        store = Store(tmp_path / "runs")
        return StudyRunner(study, store, executor=executor, trainer=TOY_WORKER).run()

    return run_there


def when(is_time: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Act, from a thread, once a condition holds."""

    def wait() -> None:
        deadline = time.monotonic() + 240
        while not is_time() and time.monotonic() < deadline:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def after(root: Path, begun: int, act: Callable[[], None]) -> threading.Thread:
    """Act, from a thread, once so many runs have been started."""
    return when(lambda: starts(root).total() >= begun, act)


def check_interrupted(run: Callable[[Study], RunSummary], study: Study, root: Path) -> None:
    """An interrupted study leaves checkpoints, from which it resumes on this machine."""
    killer = after(root, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
    summary = run(study)
    killer.join()
    assert (summary.exit_code, summary.done) == (130, 0)
    store, begun = Store(root / "runs"), [*starts(root)]
    assert all(list((store.directory(key) / "checkpoints").iterdir()) for key in begun)
    assert {store.state(cell.run_key) for cell in study.cells()} == {"open"}
    assert run_toy(study, root).executed == len(study.cells())
    assert set(ends(root).values()) == {1}
    check_equal(study, root)
    resumed = [e for key in begun for e in store.log_events(key) if e["event"] == "resumed"]
    assert len(resumed) == len(begun)


def test_an_interrupted_study_resumes(run: Callable[..., RunSummary], tmp_path: Path) -> None:
    check_interrupted(run, toy_study(range(3), steps=60), tmp_path)


def test_a_study_that_loses_a_node_equals_one_on_this_machine(
    cluster: Loopback, run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    study, victims = toy_study(range(10)), list[int]()

    def find_victim() -> bool:
        """Find a process of the second node that is at its second run."""
        events = toy_worker.executions(tmp_path)
        pids = Counter(int(pid) for what, _, pid in events if what == "start")
        victims[:] = [pid for pid, begun in pids.items() if begun > 1 and not cluster.holds(pid)]
        return bool(victims)

    killer = when(find_victim, lambda: cluster.kill_node(victims[0]))
    summary = run(study)
    killer.join()
    assert (summary.done, summary.failed, summary.missing, summary.exit_code) == (20, 0, 0, 0)
    assert ends(tmp_path).total() == 20
    assert starts(tmp_path).total() in (20, 21)
    check_equal(study, tmp_path)


def test_real_trainings_have_the_same_digests(
    cluster: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, digests = toy_study([7], steps=20), list[set[str]]()
    monkeypatch.setenv("TOY_STEP_SECONDS", "0")
    for executor in (RayExecutor(ClusterOptions(address=cluster.address)), None):
        store = Store(tmp_path / str(executor is None))
        assert StudyRunner(study, store, executor=executor).run().done == 2
        records = [store.record(cell.run_key) for cell in study.cells()]
        digests.append({record.state_sha256 for record in records if record})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2


def test_tasks_get_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_HOME": "/hub", "OMP_NUM_THREADS": "3", "QKVARY_DATA": "/data"}
    secret = dict.fromkeys(("HF_TOKEN", "WANDB_API_KEY", "HUGGING_FACE_HUB_TOKEN"), "secret")
    for name, value in (given | secret).items():
        monkeypatch.setenv(name, value)
    found = passed_on()
    assert given.items() <= found.items()
    assert not secret.keys() & found.keys()
