"""What a study shows while it runs."""

from pathlib import Path

import pytest

from qkvary.studies.records import Status, make_record
from qkvary.studies.running import runner
from qkvary.studies.running.runner import Scheduler
from qkvary.studies.running.store import Store
from tests.studies.toy_study import options, toy_study


def test_the_line_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Scheduler(toy_study(range(6)), Store(tmp_path), options())
    monkeypatch.setattr(runner.time, "monotonic", lambda: shown.began + 12.0)
    statuses: tuple[Status, ...] = ("done", "done", "failed", "failed", "diverged")
    for (key, cell), status in zip(shown.cells.items(), statuses, strict=False):
        shown.records[key] = make_record(cell, status=status, started="")
        del shown.left[key]
    assert shown.describe_progress() == "5 of 12 runs, 2 failed, 1 diverged"
    # One of the five was done before.
    shown.executed, shown.last = 4, "a run: done"
    assert shown.describe_progress() == (
        "5 of 12 runs, 2 failed, 1 diverged, 20.0 runs/min, 21 s left; last: a run: done"
    )
