import itertools

import pytest

from qkvary.studies.records import Status, make_record
from qkvary.studies.running import progress
from qkvary.studies.running.progress import (
    FIRST_SECONDS,
    INTERVAL_SECONDS,
    Publisher,
    StudyProgress,
)
from tests.studies.toy_study import toy_study

CELLS = toy_study(range(6)).cells()[:11]


def test_the_line_of_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: tuple[Status, ...] = ("done", "done", "failed", "failed", "diverged")
    shown = StudyProgress(planned=len(CELLS))
    monkeypatch.setattr(progress.time, "monotonic", lambda: shown.began + 12.0)
    for cell, status in zip(CELLS, statuses, strict=False):
        shown.records[cell.run_key] = make_record(cell, status=status, started="")
    assert shown.summary() == "5 of 11 runs, 2 failed, 1 diverged"
    # One of the five was done before.
    shown.executed, shown.last = 4, "a run: done"
    assert shown.summary() == (
        "5 of 11 runs, 2 failed, 1 diverged, 20.0 runs/min, 18 s left; last: a run: done"
    )


def test_new_results_are_published_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [1000.0], list[float]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    def write() -> str:
        calls.append(clock[0])
        clock[0] += 6.0 * (len(calls) > 3)
        if len(calls) > 5:
            raise KeyError("the disk is full")
        return "page"

    publisher, said, results = Publisher(write), list[str](), 0
    while clock[0] < 1800:
        clock[0] += 1.0
        results += not 1030 < clock[0] < 1100
        said += filter(None, [publisher.publish(results)])
    gaps = [later - first for first, later in itertools.pairwise([1000.0, *calls])]
    # The second waits for a new result, and a slow one takes no more than its share of the time.
    assert gaps == [FIRST_SECONDS, INTERVAL_SECONDS, 70.0, INTERVAL_SECONDS, 120.0, 120.0]
    assert said[:5] == ["page"] * 5
    assert said[5:] == ["the page will be written only at the end: 'the disk is full'"]
    assert Publisher().publish(1) == ""
