"""Jobs of submitit as processes of this machine; Slurm itself cannot run here."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.runner import RunnerOptions, run_study
from qkvary.studies.running.store import Store
from tests.studies import toy_worker
from tests.studies.running.executors.test_ray import STEP_SECONDS, after, check_equal
from tests.studies.toy_study import ROOT, run_toy, starts, toy_study

pytestmark = pytest.mark.cluster


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunnerOptions:
    from qkvary.studies.running.executors.slurm import SlurmExecutor

    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("TOY_STEP_SECONDS", str(STEP_SECONDS))
    executor: Any = SlurmExecutor(
        ClusterOptions(runs_per_job=5),
        tmp_path / "runs",
        toy_worker.train_cell,
        cluster="local",
    )
    return RunnerOptions(executor=executor, quiet=True)


def kill_owner(root: Path) -> None:
    pid = int(toy_worker.executions(root)[-1][2])
    os.kill(pid, signal.SIGKILL)


def test_a_study_that_loses_a_job_equals_one_on_this_machine(
    options: RunnerOptions, tmp_path: Path
) -> None:
    study = toy_study(range(5))
    killer = after(tmp_path, 4, lambda: kill_owner(tmp_path))
    summary = run_study(study, Store(tmp_path / "runs"), options)
    killer.join()
    assert (summary.done, summary.failed, summary.missing, summary.exit_code) == (10, 0, 0, 0)
    assert max(starts(tmp_path).values()) == 2
    (note,) = summary.notes
    assert "it is submitted again" in note
    check_equal(study, tmp_path, tmp_path / "local")


def test_an_interrupted_study_leaves_checkpoints_and_no_jobs(
    options: RunnerOptions, tmp_path: Path
) -> None:
    study = toy_study(range(5), steps=60)
    killer = after(tmp_path, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    store = Store(tmp_path / "runs")
    summary = run_study(study, store, options)
    killer.join()
    assert (summary.exit_code, summary.done) == (130, 0)
    assert {store.state(cell.run_key) for cell in study.cells()} == {"open"}
    begun = [store.directory(key) for key in starts(tmp_path)]
    assert all(list((folder / "checkpoints").iterdir()) for folder in begun)
    run_toy(study, tmp_path)
    check_equal(study, tmp_path, tmp_path / "local")
