"""A parser that panics, hangs or fills the memory ends alone, and its caller gets a sentence."""

import os
import signal
import time
from pathlib import Path

import pytest

from qkvary.storage import parser_processes
from qkvary.storage.parser_processes import ParserProcess

PARSER = "tests.storage.odd_parser"


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_processes, "PARSER_SECONDS", 0.6)


def test_requests_are_answered_in_order() -> None:
    parser = ParserProcess(PARSER, "content")
    assert parser.ask("echo é\n") == ["content", "echo é\n"]
    assert parser.ask(["a", 1]) == ["content", ["a", 1]]


@pytest.mark.parametrize(
    ("request_text", "message"),
    [
        ("refuse", "^not this$"),
        ("panic", "^a panic$"),
        ("hang", "^the parser of this file took more than 1 seconds$"),
        ("fill", "needs too much memory|^MemoryError$"),
        ("crash", "^the parser of this file stopped with SIGSEGV, which"),
        ("leave", "^the parser of this file stopped with code 5, which"),
    ],
)
def test_what_ends_a_parser_is_a_sentence(request_text: str, message: str) -> None:
    parser = ParserProcess(PARSER, "content")
    start = time.process_time()
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            parser.ask(request_text)
    assert time.process_time() - start < 5
    assert parser.ask("still") == ["content", "still"]


def test_a_file_that_is_refused_is_refused_again() -> None:
    parser = ParserProcess(PARSER, "bad content")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^bad content$"):
            parser.ask("anything")


def test_a_longer_text_may_take_longer() -> None:
    parser = ParserProcess(PARSER, "content")
    assert parser.ask("work", characters=100_000) == "done"
    with pytest.raises(ValueError, match="more than 1 seconds"):
        parser.ask("work")


def test_a_fork_gets_a_process_of_its_own(tmp_path: Path) -> None:
    parser = ParserProcess(PARSER, "content")
    mine = parser.ask("number")
    child = os.fork()
    if not child:
        try:
            theirs = parser.ask("number")
            (tmp_path / "number").write_text(str(theirs))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int((tmp_path / "number").read_text()) != mine
    assert parser.ask("number") == mine


def test_an_interrupt_leaves_no_answer_behind() -> None:
    parser = ParserProcess(PARSER, "content")
    parser.ask("first")
    previous = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            parser.ask("wait")
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert parser.ask("next") == ["content", "next"]


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def test_the_working_directory_holds_no_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert ParserProcess(PARSER, "content").ask("x") == ["content", "x"]
