import io
from contextlib import redirect_stderr

import pytest

from qkvary.text import progress_line
from qkvary.text.progress_line import ProgressLine, say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_a_changed_line_comes_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    line = ProgressLine()
    for text in ("one", "two", "three", "three", "four"):
        line.show(lambda text=text: text)
        clock[0] += 20.0
    line.clear()
    assert capsys.readouterr().err.split() == ["one", "three", "four"]


def test_a_terminal_has_one_line_below_the_sentences(clock: list[float]) -> None:
    with redirect_stderr(Terminal()) as screen:
        line = ProgressLine(shown=clock[0])
        line.show(lambda: "too early")
        clock[0] += 1.0
        line.show(lambda: "1 of 2\x1b[2J" + "." * 99)
        say("a \x07sentence")
        clock[0] += 1.0
        line.show(lambda: "2 of 2")
        line.clear()
    drawn, cleared, said_and_drawn, cleared_again, rest = screen.getvalue().split("\r")
    assert drawn == "1 of 2\\x1b[2J".ljust(79, ".")
    assert cleared == cleared_again == " " * 79
    assert said_and_drawn == "a \\x07sentence\n" + "2 of 2".ljust(79)
    assert rest == ""


def test_an_unchanged_line_is_drawn_again_after_a_sentence(clock: list[float]) -> None:
    with redirect_stderr(Terminal()) as screen:
        line = ProgressLine()
        for _ in range(2):
            line.show(lambda: "1 of 2")
            clock[0] += 1.0
        say("a sentence")
        line.show(lambda: "1 of 2")
        line.clear()
    assert screen.getvalue().count("1 of 2") == 2
