import io
import itertools
from collections import Counter

import pytest
from rich.console import Console

from qkvary.studies.running import live
from qkvary.studies.running.live import (
    FIRST_SECONDS,
    INTERVAL_SECONDS,
    LiveDisplay,
    PlainDisplay,
    ProgressView,
    Publisher,
)
from tests.studies.toy_study import toy_study

FIRST, SECOND, *_ = CELLS = toy_study([1, 2, 3]).cells()


def view() -> ProgressView:
    return ProgressView(
        name="toy [red]",
        total=11,
        counts=Counter(done=2, failed=2, diverged=1),
        seconds_left=61.0,
        running=lambda: [(FIRST, {"event": "train", "step": 7, "loss": 0.25}), (SECOND, {})],
    )


def test_the_time_left_is_that_of_the_runs_most_like_those_that_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = ProgressView(name="", total=6)
    monkeypatch.setattr(live.time, "monotonic", lambda: shown.began + 4.0)
    shown.estimate(CELLS)
    assert shown.seconds_left is None
    shown.add_seconds(FIRST, 2.0)
    shown.estimate([SECOND])
    assert shown.seconds_left == 2.0, "one at a time so far"
    shown.add_seconds(SECOND, 6.0)
    shown.estimate(CELLS[2:])
    assert shown.seconds_left == (2.0 + 6.0) * 2 / 2, "two at a time"
    assert "30.0 runs/min" in shown.summary()


def test_the_summary_line_of_a_study() -> None:
    expected = "5 of 11 runs, 2 failed, 1 diverged, 61 s left"
    assert view().summary() == expected
    assert ProgressView(name="", total=3).summary() == "0 of 3 runs"


def test_plain_lines_are_whole_and_without_markup() -> None:
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, width=40), view())
    display.note("a note of [bold]more[/bold] than forty characters, unbroken")
    display.ended("Q-K=V: done")
    display.refresh()
    display.close()
    first, second = file.getvalue().splitlines()
    assert first == "a note of [bold]more[/bold] than forty characters, unbroken"
    assert second.startswith("Q-K=V: done  [5 of 11 runs")


def test_plain_lines_come_every_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    file = io.StringIO()
    display = PlainDisplay(Console(file=file, width=200), view())
    for second in range(0, 25, 3):
        clock[0] = 100.0 + second
        display.ended(f"run {second}")
    display.refresh()
    assert [line.split(" ")[1] for line in file.getvalue().splitlines()] == ["0", "12", "24"]
    display.ended("run 99")
    display.close()
    assert file.getvalue().splitlines()[-1].startswith("run 99  [5 of 11 runs")


def test_a_terminal_shows_the_mean_of_each_variant_in_each_setting() -> None:
    shown = ProgressView(name="toy", total=6)
    first, second = (toy_study((seed,)).cells() for seed in (1, 2))
    for cell, result in zip((*first, second[0]), (0.5, 0.25, 1.0), strict=True):
        shown.add(cell, result)
    shown.add(second[1], None)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=60, height=30, color_system=None)
    display = LiveDisplay(console, shown)
    display.refresh()
    display.close()
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["QKV", "0.750", "(2)"] in lines
    assert ["Q-K=V", "0.250", "(1)"] in lines
    assert ["mean", "so", "far", "accuracy"] in lines


def test_a_terminal_shows_a_bar_and_every_run() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=30, color_system=None)
    display = LiveDisplay(console, view())
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

    publisher, said = Publisher(write), list[str]()
    while clock[0] < 1800:
        clock[0] += 1.0
        if not 1030 < clock[0] < 1100:
            publisher.add()
        said += filter(None, [publisher.publish()])
    gaps = [later - first for first, later in itertools.pairwise([1000.0, *calls])]
    # The second waits for a new result, and a slow one takes no more than its share of the time.
    assert gaps == [FIRST_SECONDS, INTERVAL_SECONDS, 70.0, INTERVAL_SECONDS, 120.0, 120.0]
    assert said[:5] == ["page"] * 5
    assert said[5:] == ["the page is not written before the end: 'the disk is full'"]
    assert Publisher().publish() == ""
