"""Studies of the toy worker, and runners of them in processes of their own."""

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.jsonvalues import encode
from qkvary.studies.records import Record
from qkvary.studies.running.executors.local import LocalExecutor
from qkvary.studies.running.runner import RunSummary, StudyRunner
from qkvary.studies.running.store import Claim, Store
from qkvary.studies.study import Cell, Study
from qkvary.tasks.example_files import maps_from_bytes
from qkvary.training.config import OptimizerConfig
from tests.forked import ForkedPython
from tests.studies import made_up
from tests.studies.toy_worker import executions

ROOT = Path(__file__).resolve().parents[2]
TOY_WORKER = "tests.studies.toy_worker"


def toy_study(seeds: Sequence[int], *, steps: int = 10) -> Study:
    """Two variants for each seed."""
    usual = made_up.make_setting("toy <b>setting</b>", "copy", length=3, steps=steps)
    sizes = {"train_examples": 41, "validation_examples": 11, "test_examples": 13}
    training = dataclasses.replace(
        usual.training,
        batch_size=1,
        optimizer=OptimizerConfig(learning_rate=0.1),
        evaluate_every=5,
        solve_threshold=None,
    )
    setting = dataclasses.replace(
        usual,
        task=dataclasses.replace(usual.task, vocabulary=5, **sizes),  # type: ignore[call-arg]
        network=dataclasses.replace(usual.network, vocabulary=5, classes=5, num_layers=1),
        training=training,
    )
    study = made_up.make_study(setting, seeds=seeds)
    return dataclasses.replace(study, name="toy", question="Does it run?")


def run_toy(study: Study, root: Path, workers: int = 2, **others: Any) -> RunSummary:
    given = {"executor": LocalExecutor(workers), "trainer": TOY_WORKER, **others}
    return StudyRunner(study, Store(root / "runs"), **given).run()


RUNNER = """
import json, sys
from pathlib import Path
from tests.studies.toy_study import run_toy, toy_study
root, seeds, steps, options = sys.argv[1:]
study = toy_study(json.loads(seeds), steps=int(steps))
summary = run_toy(study, Path(root), **json.loads(options))
for note in summary.notes:
    print(note)
print(summary.message)
sys.exit(summary.exit_code)
"""


def start_runner(
    root: Path,
    seeds: Sequence[int],
    *,
    steps: int = 10,
    step_seconds: float = 0.0,
    **options: Any,
) -> "subprocess.Popen[str]":
    """Start a runner of a toy study in a process of its own."""
    arguments = [str(root), json.dumps([*seeds]), str(steps), json.dumps(options)]
    return ForkedPython(
        [sys.executable, "-c", RUNNER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TOY_STEP_SECONDS": str(step_seconds),
        },
    )


def end_runner(runner: "subprocess.Popen[str]") -> tuple[int, str]:
    """Wait for a runner; return its exit code and what it said."""
    said, _ = runner.communicate(timeout=120)
    return runner.returncode, said


def stored_record(store: Store, key: str) -> Record:
    """Return the record of a run that has ended."""
    record = store.record(key)
    assert record is not None
    return record


def claim_cell(store: Store, cell: Cell) -> Claim:
    """Claim an open run."""
    claim = store.claim(cell.run.identity())
    assert claim is not None
    return claim


def table(study: Study, root: Path) -> list[str]:
    """The results of a study, ordered, without times: equal studies have equal bytes."""
    store = Store(root / "runs")
    rows: list[str] = []
    for cell in study.cells():
        assert store.find_damage(cell.run_key) is None
        record = stored_record(store, cell.run_key)
        curve = [
            {name: value for name, value in event.items() if name != "seconds"}
            for event in store.log_events(cell.run_key)
            if event["event"] != "resumed"
        ]
        attention = store.file(cell.run_key, "attention.safetensors")
        maps = None if attention is None else maps_from_bytes(attention).maps.tolist()
        rows.append(
            encode(
                [
                    record.run_key,
                    record.status,
                    record.message,
                    record.metrics,
                    record.state_sha256,
                    curve,
                    maps,
                ]
            )
        )
    return rows


def check_equal(study: Study, root: Path) -> None:
    """Check that a study left nothing but the results that it has when nothing disturbs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_STEP_SECONDS", "0")
        run_toy(study, root / "undisturbed")
    assert table(study, root) == table(study, root / "undisturbed")
    assert leftovers(root) == []


def leftovers(root: Path) -> list[str]:
    """Files that should not exist once a study is done."""
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.name.startswith(TEMPORARY_PREFIX) or path.name == "checkpoints"
    ]


def ends(root: Path) -> Counter[str]:
    """Return how often each run was completed."""
    return Counter(key for what, key, _pid in executions(root) if what == "end")


def starts(root: Path) -> Counter[str]:
    """Return how often each run was started."""
    return Counter(key for what, key, _pid in executions(root) if what == "start")
