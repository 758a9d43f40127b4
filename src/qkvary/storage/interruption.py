"""The signals that end long work: the first one stops it in order, the second kills the process.

Work that stops in order has written a checkpoint, and can resume.
"""

import os
import signal
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = "stopping after a checkpoint; interrupt again to stop at once"
"""The message when a first signal arrives."""


def announce_stop() -> None:
    """Write the message to standard error, also from inside a signal handler."""
    with suppress(OSError):
        os.write(2, f"\n{STOPPING}\n".encode())


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals to handle; SIGHUP is left out where it is ignored, as under nohup."""
    chosen = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        chosen.append(signal.SIGHUP)
    return tuple(chosen)


@contextmanager
def stop_in_order(
    stop: Callable[[int], object], end: Callable[[int], object] | None = None
) -> Generator[list[int]]:
    """Call a function at the first of these signals inside the block; the second ends the process.

    Only the main thread can do so; in other threads the signals are not changed.

    Args:
        stop: Called with the first signal. It may interrupt a print, so it must not print; see
            :func:`announce_stop`.
        end: Called with the second before the process ends; an error that it raises is raised.

    Yields:
        A list, which gets the first signal.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, _frame: FrameType | None) -> None:
        if received:
            if end is not None:
                end(number)
            os._exit(128 + number)
        received.append(number)
        leave_terminal(number)
        stop(number)

    before = {number: signal.signal(number, receive) for number in ending_signals()}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def leave_terminal(number: int) -> None:
    """Discard output after SIGHUP: the terminal is gone, and writing to it fails."""
    if number != signal.SIGHUP:
        return
    for stream in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream)
                os.close(null)
