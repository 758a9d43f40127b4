import io

import pytest
from rich.console import Console

from qkvary.studies.running.live import (
    LiveDisplay,
    PlainDisplay,
    ProgressView,
    WorkerLine,
    format_seconds,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


def view() -> ProgressView:
    line = WorkerLine(title="reverse [bold]Q-K=V[/bold]", step=7, steps=13, loss=0.25)
    return ProgressView(
        name="toy [red]",
        total=11,
        done=5,
        failed=2,
        diverged=1,
        seconds_left=61.0,
        runs_per_minute=3.25,
        workers={1: line, 2: WorkerLine()},
    )


def test_the_summary_line_of_a_study() -> None:
    expected = "5 of 11 runs, 2 failed, 1 diverged, 3.2 runs/min, 1 min 01 s left"
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


def test_a_terminal_shows_a_bar_and_every_worker() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=30, color_system=None)
    display = LiveDisplay(console, view())
    display.refresh()
    display.note("a [note]")
    display.ended("nothing")
    display.close()
    shown = file.getvalue()
    for text in ("toy", "5/11", "1 min 01 s left", "worker 1", "[bold]Q-K=V[/bold]", "step 7/13"):
        assert text in shown
    assert "loss 0.25" in shown
    assert "a [note]" in shown
    assert "nothing" not in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1, "the cursor is put back"
