import io
import itertools
from collections.abc import Sequence

import pytest
from rich.console import Console

from qkvary.studies.records import Status, make_record
from qkvary.studies.running import live
from qkvary.studies.running.live import (
    FIRST_SECONDS,
    INTERVAL_SECONDS,
    LiveDisplay,
    PlainDisplay,
    ProgressView,
    Publisher,
)
from qkvary.studies.study import Cell
from tests.studies.toy_study import toy_study

CELLS = toy_study(range(6)).cells()[:11]
FIRST, SECOND, *_ = CELLS


def view(*statuses: Status, cells: Sequence[Cell] = CELLS, result: float = 0.0) -> ProgressView:
    """The first runs have ended with these statuses."""
    records = {
        cell.run_key: make_record(
            cell,
            status=status,
            started="",
            metrics={f"test_{cell.run.task.metric}": result + number**2},
        )
        for number, (cell, status) in enumerate(zip(cells, statuses, strict=False))
    }
    return ProgressView(
        name="toy [red]",
        cells={cell.run_key: cell for cell in cells},
        records=records,
        seconds_left=61.0 if records else None,
        running=lambda: [(FIRST, {"event": "train", "step": 7, "loss": 0.25}), (SECOND, {})],
    )


ENDED = ("done", "done", "failed", "failed", "diverged")


def test_the_time_left_is_that_of_the_runs_most_like_those_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = view(cells=CELLS[:3])
    monkeypatch.setattr(live.time, "monotonic", lambda: shown.began + 4.0)
    shown.estimate()
    assert shown.seconds_left is None
    for cell, seconds, left in (
        (FIRST, 2.0, 2 * 2.0),  # one at a time so far
        (SECOND, 6.0, 2.0 / 2),  # two at a time; one run of the first variant is left
    ):
        shown.records |= view("done", cells=[cell]).records
        shown.seconds[cell.run_key] = seconds
        shown.estimate()
        assert shown.seconds_left == left
    assert "30.0 runs/min" in shown.summary()


def test_the_summary_line_of_a_study() -> None:
    assert view(*ENDED).summary() == "5 of 11 runs, 2 failed, 1 diverged, 61 s left"
    assert view(cells=CELLS[:3]).summary() == "0 of 3 runs"


def test_plain_lines_are_whole_without_markup_and_every_ten_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, width=40), view(*ENDED))
    display.note("a note of [bold]more[/bold] than forty characters, unbroken")
    for second in range(0, 25, 3):
        clock[0] = 100.0 + second
        display.ended(f"run {second}")
    display.refresh()
    note, *lines = file.getvalue().splitlines()
    assert note == "a note of [bold]more[/bold] than forty characters, unbroken"
    assert [line.split(" ")[1] for line in lines] == ["0", "12", "24"]
    display.ended("run 99")
    display.close()
    assert file.getvalue().splitlines()[-1].startswith("run 99  [5 of 11 runs")


def test_a_terminal_shows_the_mean_of_each_variant_in_each_setting() -> None:
    shown = view("done", "done", "done", "failed", result=0.25)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, height=30, color_system=None)
    display = LiveDisplay(console, shown)
    display.refresh()
    display.close()
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["QKV", "2.250", "(2)"] in lines
    assert ["Q-K=V", "1.250", "(1)"] in lines
    assert ["mean", "so", "far", "accuracy"] in lines


def test_a_terminal_shows_a_bar_and_every_run() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=30, color_system=None)
    display = LiveDisplay(console, view(*ENDED))
    display.refresh()
    display.note("a [note]")
    display.ended("nothing")
    display.close()
    shown = file.getvalue()
    for text in ("toy", "5/11", "61 s left", FIRST.title, "step 7/10", "starting"):
        assert text in shown
    assert "loss 0.25" in shown
    assert "a [note]" in shown
    assert "nothing" not in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is put back"


def test_new_results_are_published_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [1000.0], list[float]()
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])

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
    assert said[5:] == ["the page is not written before the end: 'the disk is full'"]
    assert Publisher().publish(1) == ""
