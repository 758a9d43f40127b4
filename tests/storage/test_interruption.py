"""Which signals end a run in order, and what happens to its terminal."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest

from qkvary.storage.environment import STOPPING, ending_signals, stop_in_order
from qkvary.text.progress_line import say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """Tests may run in the background of a script, where SIGINT is ignored."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, previous in before.items():
        signal.signal(number, previous)


@pytest.mark.parametrize("announce", [False, True])
def test_work_survives_its_terminal_until_a_checkpoint(
    announce: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in SIGNALS:
        with stop_in_order(announce=announce) as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), number)
            assert stop.is_set()
        assert stop.number == number
    assert capfd.readouterr().err.count(STOPPING) == (3 if announce else 0)


def test_the_second_signal_ends_what_the_first_did_not() -> None:
    with stop_in_order(end=pytest.fail) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(pytest.fail.Exception):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.number == signal.SIGTERM


def test_a_lost_reader_is_a_hang_up_that_hurries_nobody() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as lost, redirect_stderr(lost), stop_in_order() as stop:
        say("lost")
        signal.raise_signal(signal.SIGHUP)
    assert stop.number == signal.SIGHUP


@pytest.mark.parametrize("number", SIGNALS)
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    assert ending_signals() == tuple(one for one in SIGNALS if one != number)


def test_printing_to_a_lost_terminal_does_not_fail() -> None:
    code = (
        "import sys; from qkvary.storage.environment import leave_terminal\n"
        "sys.stdin.readline(); leave_terminal(1); print('lost', flush=True)"
    )
    own, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=theirs)
    os.close(theirs)
    os.close(own)
    process.communicate(b"\n")
    assert process.returncode == 0
