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
FIRST, SECOND, *_ = CELLS


def test_the_time_left_is_that_of_the_runs_most_like_those_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = StudyProgress(cells={cell.run_key: cell for cell in CELLS[:3]})
    monkeypatch.setattr(progress.time, "monotonic", lambda: shown.began + 4.0)
    assert shown.summary() == "0 of 3 runs"
    for cell, seconds, said in (
        # One at a time so far.
        (FIRST, 2.0, "15.0 runs/min, 4.0 s left"),
        # Two at a time; one run of the first variant is left.
        (SECOND, 6.0, "30.0 runs/min, 1.0 s left"),
    ):
        shown.records[cell.run_key] = make_record(cell, status="done", started="")
        shown.add_seconds(cell.run_key, seconds)
        assert shown.speed == said


def test_the_line_of_a_study() -> None:
    statuses: tuple[Status, ...] = ("done", "done", "failed", "failed", "diverged")
    shown = StudyProgress(cells={cell.run_key: cell for cell in CELLS})
    for cell, status in zip(CELLS, statuses, strict=False):
        shown.records[cell.run_key] = make_record(cell, status=status, started="")
    assert shown.summary() == "5 of 11 runs, 2 failed, 1 diverged"
    shown.speed, shown.last = "24.0 runs/min, 61 s left", "a run: done"
    assert shown.summary() == (
        "5 of 11 runs, 2 failed, 1 diverged, 24.0 runs/min, 61 s left; last: a run: done"
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
