"""Which signals end a run in order, and what happens to its terminal."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from qkvary.storage.environment import ending_signals, stop_in_order


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_work_survives_its_terminal_until_a_checkpoint(hangup: None) -> None:
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with stop_in_order(stopped.append) as received:
            os.kill(os.getpid(), number)
        assert received == [number]
    assert stopped == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def test_the_second_signal_ends_what_the_first_did_not(hangup: None) -> None:
    def end(number: int) -> None:
        raise TimeoutError(str(number))

    stopped: list[int] = []
    with stop_in_order(stopped.append, end):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(TimeoutError, match="15"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped == [signal.SIGTERM]


def test_a_hangup_that_is_ignored_stays_ignored(hangup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert ending_signals() == (signal.SIGINT, signal.SIGTERM)


def test_printing_to_a_lost_terminal_does_not_fail() -> None:
    code = (
        "import signal, sys\n"
        "from qkvary.storage.environment import leave_terminal\n"
        "sys.stdin.readline()\n"
        "leave_terminal(signal.SIGHUP)\n"
        "print('lost', flush=True)\n"
    )
    own, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=theirs)
    os.close(theirs)
    os.close(own)
    process.communicate(b"\n")
    assert process.returncode == 0
