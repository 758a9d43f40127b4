"""What a study shows while it runs."""

import itertools
from pathlib import Path

import pytest

from qkvary.studies.records import Status, make_record
from qkvary.studies.running import runner
from qkvary.studies.running.runner import PUBLISH_SECONDS, StudyRunner
from qkvary.studies.running.store import Store
from tests.studies.toy_study import toy_study


def test_the_line_of_a_study(tmp_path: Path) -> None:
    shown = StudyRunner(toy_study(range(6)), Store(tmp_path))
    assert shown.describe_runs() == ""
    statuses: tuple[Status, ...] = ("done", "done", "failed", "failed", "diverged")
    for (key, cell), status in zip(shown.cells.items(), statuses, strict=False):
        shown.records[key] = make_record(cell, status=status, started="")
    shown.last = "a run: done"
    assert shown.describe_runs() == "2 failed, 1 diverged, last: a run: done"


def test_new_results_are_published_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = [1000.0], list[float]()
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])

    def write() -> str:
        calls.append(clock[0])
        clock[0] += 6.0 * (len(calls) > 3)
        if len(calls) > 5:
            raise KeyError("the disk is full")
        return "page"

    study = toy_study(range(400))
    shown = StudyRunner(study, Store(tmp_path), publish=write)
    cells = iter(shown.cells.items())
    while clock[0] < 1800:
        clock[0] += 1.0
        if not 1030 < clock[0] < 1100:
            key, cell = next(cells)
            shown.records[key] = make_record(cell, status="done", started="")
        shown.publish()
    gaps = [later - first for first, later in itertools.pairwise([1000.0, *calls])]
    # The third waits for a new result, and a slow one takes no more than its share of the time.
    assert gaps == [PUBLISH_SECONDS, PUBLISH_SECONDS, 60.0, PUBLISH_SECONDS, 120.0, 120.0]
    assert shown.notes == ["page"] * 5 + [
        "the page cannot be written now, only at the end: 'the disk is full'"
    ]
