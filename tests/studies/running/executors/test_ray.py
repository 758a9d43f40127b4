"""A Ray cluster of two nodes on loopback."""

import dataclasses
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qkvary.cli.main import main
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors import ray, supervision
from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.executors.ray import RayExecutor, passed_on
from qkvary.studies.running.ledger import RunSummary
from qkvary.studies.running.runner import RunnerOptions, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.running.work_loop import MAX_CRASHES
from qkvary.studies.study import Study
from tests.studies import toy_worker
from tests.studies.running.executors.loopback import connect, disconnect, node
from tests.studies.toy_study import ends, leftovers, run_toy, starts, table, toy_study

pytestmark = pytest.mark.cluster


@pytest.fixture
def run(cluster: Any, tmp_path: Path) -> Callable[..., RunSummary]:
    connect(cluster)

    def run_there(study: Study, **chosen: Any) -> RunSummary:
        executor = RayExecutor(ClusterOptions(**chosen), toy_worker.train_cell)
        options = RunnerOptions(executor=executor, quiet=True)
        return run_study(study, Store(tmp_path / "runs"), options)

    return run_there


def after(roots: Sequence[Path], begun: int, act: Callable[[], None]) -> threading.Thread:
    """Act, from a thread, once so many runs have been started."""

    def wait() -> None:
        deadline = time.monotonic() + 120
        while total(starts, roots) < begun and time.monotonic() < deadline:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def total(count: Callable[[Path], Counter[str]], roots: Sequence[Path]) -> int:
    return sum(count(root).total() for root in roots)


def check_equal(study: Study, root: Path, other: Path, nodes: Sequence[Path] = ()) -> None:
    """Check that every run was made once, and as on this machine.

    Args:
        study: The runs.
        root: The folder beside their store.
        other: A folder for the runs of this machine.
        nodes: The folders of nodes that do not see the store.
    """
    other.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_STEP_SECONDS", "0")
        run_toy(study, other)
    assert table(study, root) == table(study, other)
    assert total(ends, nodes or [root]) == len(study.cells())
    assert leftovers(root) == []


def test_a_study_that_loses_a_node_equals_one_on_this_machine(
    cluster: Any, run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    study = toy_study(range(10))
    lost = cluster.add_node(**node(tmp_path / "node"))
    killer = after([tmp_path], 8, lambda: cluster.remove_node(lost, allow_graceful=False))
    summary = run(study)
    killer.join()
    assert (summary.done, summary.failed, summary.missing, summary.exit_code) == (20, 0, 0, 0)
    check_equal(study, tmp_path, tmp_path / "local")


def test_nodes_with_folders_of_their_own_return_their_runs(
    cluster: Any,
    run: Callable[..., RunSummary],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One of three nodes is killed; it takes along the run that it executes, and no other."""
    study = toy_study(range(10))
    lost = cluster.add_node(**node(tmp_path / "node"))
    others = [tmp_path_factory.getbasetemp() / "nodes0" / name for name in ("first", "second")]
    folders = [*others, tmp_path / "node"]
    killer = after(folders, 8, lambda: cluster.remove_node(lost, allow_graceful=False))
    summary = run(study, shared_folder=False)
    killer.join()
    assert (summary.done, summary.failed, summary.missing, summary.exit_code) == (20, 0, 0, 0)
    assert summary.executed == 20
    assert all(starts(folder) for folder in folders)
    assert total(starts, folders) <= 21
    assert starts(tmp_path) == {}
    check_equal(study, tmp_path, tmp_path / "local", folders)
    assert not [path for folder in others for path in folder.rglob("record.json")]


def test_real_trainings_have_the_same_digests(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(cluster)
    study, digests = toy_study([7], steps=20), list[set[str]]()
    monkeypatch.setenv("TOY_STEP_SECONDS", "0")
    for executor in (RayExecutor(ClusterOptions()), None):
        store = Store(tmp_path / str(executor is None))
        assert run_study(study, store, RunnerOptions(executor=executor, quiet=True)).done == 2
        records = [store.record(cell.run_key) for cell in study.cells()]
        digests.append({record.state_sha256 for record in records if record})
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2


def test_an_interrupted_study_leaves_checkpoints_and_resumes_on_this_machine(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    study = toy_study(range(3), steps=60)
    killer = after([tmp_path], 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    summary = run(study)
    killer.join()
    assert (summary.exit_code, summary.done) == (130, 0)
    store = Store(tmp_path / "runs")
    begun = [store.directory(key) for key in starts(tmp_path)]
    assert all(list((folder / "checkpoints").iterdir()) for folder in begun)
    assert {store.state(cell.run_key) for cell in study.cells()} == {"open"}
    assert run_toy(study, tmp_path).executed == 6
    check_equal(study, tmp_path, tmp_path / "local")
    resumed = [e for key in starts(tmp_path) for e in store.curve(key) if e["event"] == "resumed"]
    assert len(resumed) == 2


def test_a_run_that_crashes_its_processes_counts_as_failed(
    run: Callable[..., RunSummary], tmp_path: Path
) -> None:
    study = dataclasses.replace(toy_study([0, toy_worker.CRASHES]), variants=("QKV",))
    summary = run(study)
    assert (summary.done, summary.failed, summary.missing) == (1, 1, 0)
    (crashed,) = [cell.run_key for cell in study.cells() if cell.seed == toy_worker.CRASHES]
    assert starts(tmp_path)[crashed] == MAX_CRASHES + 1
    record = Store(tmp_path / "runs").record(crashed)
    assert record
    assert record.message.startswith(f"this run crashed {MAX_CRASHES + 1} workers, the last was ")


def test_a_node_that_does_not_see_the_folder_says_so(
    run: Callable[..., RunSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "atomic_write_file", lambda _path, _data: None)
    summary = run(toy_study([0]))
    assert summary.exit_code == 2
    assert (
        "is not the folder of this study: expected a folder that all nodes see" in summary.message
    )


def test_a_cluster_that_does_not_answer_is_named() -> None:
    disconnect()
    with pytest.raises(UsageError, match="Ray cluster 'nowhere'"):
        RayExecutor(ClusterOptions(address="nowhere"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "localhost:99999"])
def test_an_address_where_nothing_listens_is_one_sentence(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_refused(address, tmp_path, capfd)


def check_refused(address: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    disconnect()
    words = ["study", "quickstart", "--out", str(folder / "runs"), "--executor", "ray"]
    assert main([*words, "--address", address]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"no Ray cluster answers at '{address}'" in printed.err


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_listens_is_one_sentence(
    answer: bytes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it accepts the connection and never answers."""
    monkeypatch.setattr(ray, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = list[socket.socket]()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    held.append(server.accept()[0])
                    held[-1].sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        check_refused(f"127.0.0.1:{server.getsockname()[1]}", tmp_path, capfd)
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    assert len(held) == 1
    held[0].close()


def test_tasks_get_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"HF_HOME": "/hub", "OMP_NUM_THREADS": "3", "QKVARY_DATA": "/data"}
    secret = dict.fromkeys(("HF_TOKEN", "WANDB_API_KEY", "HUGGING_FACE_HUB_TOKEN"), "secret")
    for name, value in (given | secret).items():
        monkeypatch.setenv(name, value)
    found = passed_on()
    assert given.items() <= found.items()
    assert not secret.keys() & found.keys()
