"""Jobs of submitit as processes of this machine; Slurm itself cannot run here."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from qkvary.storage.errors import UsageError
from qkvary.studies.running.cells import CellOptions
from qkvary.studies.running.executors.contract import ClusterOptions, WorkerTask
from qkvary.studies.running.executors.slurm import FOLDER, SlurmExecutor
from qkvary.studies.running.executors.task import execute_task
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from tests.studies import toy_worker
from tests.studies.running.executors.loopback import STEP_SECONDS
from tests.studies.running.executors.test_ray import after, check_interrupted
from tests.studies.toy_study import ROOT, TOY_WORKER, check_equal, ends, starts, toy_study

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("TOY_STEP_SECONDS", str(STEP_SECONDS))


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Study], RunSummary]:
    executor = SlurmExecutor(ClusterOptions(runs_per_job=5), tmp_path / "runs", cluster="local")

    def run_there(study: Study) -> RunSummary:
        store = Store(tmp_path / "runs")
        return StudyRunner(study, store, executor=executor, trainer=TOY_WORKER).run()

    return run_there


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2])
def test_a_study_whose_job_is_killed_or_preempted_equals_one_on_this_machine(
    run: Callable[[Study], RunSummary], tmp_path: Path, number: signal.Signals
) -> None:
    """The runner resubmits a killed job; submitit requeues a preempted one."""
    study = toy_study(range(5))

    def signal_owner() -> None:
        os.kill(int(toy_worker.executions(tmp_path)[-1][2]), number)

    killer = after(tmp_path, 4, signal_owner)
    summary = run(study)
    killer.join()
    assert (summary.done, summary.failed, summary.missing, summary.exit_code) == (10, 0, 0, 0)
    assert max(starts(tmp_path).values()) == 2
    is_killed = number == signal.SIGKILL
    assert ["it is submitted again" in note for note in summary.notes] == [True] * is_killed
    assert set(ends(tmp_path).values()) == {1}
    check_equal(study, tmp_path)
    assert list((tmp_path / "runs" / FOLDER).glob("*/*_log.err"))


def test_an_interrupted_study_leaves_checkpoints_and_no_jobs(
    run: Callable[[Study], RunSummary], tmp_path: Path
) -> None:
    check_interrupted(run, toy_study(range(5), steps=60), tmp_path)


def stand_in(folder: Path, patch: pytest.MonkeyPatch, sbatch: str) -> None:
    """Programs of Slurm, which itself cannot run here."""
    for name, text in (("srun", "exit 0"), ("sbatch", sbatch)):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def make_tasks(store: Path) -> list[WorkerTask]:
    return [
        WorkerTask(store=store, cells=(cell,), options=CellOptions(), trainer=TOY_WORKER)
        for cell in toy_study(range(5)).cells()
    ]


def test_sbatch_gets_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f'cp "$1" {tmp_path}/script; echo Submitted batch job 12')
    options = ClusterOptions(
        partition="short", minutes=30, parallel_jobs=3, slurm=("account=mine",)
    )
    executor = SlurmExecutor(options, tmp_path / "runs")
    executor.submit_all(execute_task, make_tasks(tmp_path / "runs"))
    lines = (tmp_path / "script").read_text().splitlines()
    said = dict(
        line.removeprefix("#SBATCH --").split("=", 1)
        for line in lines
        if line.startswith("#SBATCH --") and "=" in line
    )
    assert (said["partition"], said["time"], said["account"]) == ("short", "30", "mine")
    assert (said["array"], said["cpus-per-task"]) == ("0-9%3", "1")
    assert said["mem"] == "1280MB"
    assert (tmp_path / "runs" / "slurm").stat().st_mode & 0o777 == 0o700


def test_what_slurm_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "echo sbatch: error: invalid partition specified >&2; exit 1"
    stand_in(tmp_path, monkeypatch, refusal)
    executor = SlurmExecutor(ClusterOptions(), tmp_path / "runs")
    with pytest.raises(UsageError, match=r"Slurm refuses the jobs: .*invalid partition specified"):
        executor.submit_all(execute_task, make_tasks(tmp_path / "runs"))
