"""The signals that end a training or a study in order. Torch-free."""

import os
import signal
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = "stopping after a checkpoint; interrupt again to stop at once"
"""The message when a training or a study is interrupted."""
RUNNER_GONE = threading.Event()
"""Set in a worker whose runner has ended."""
TERMINATED = threading.Event()
"""Set when a signal ended a task of this process; a worker takes no other then."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals to handle; SIGHUP is left out where it is ignored, as under nohup."""
    chosen = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        chosen.append(signal.SIGHUP)
    return tuple(chosen)


@contextmanager
def handle_endings(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Call ``handler`` for these signals inside the block, and what was called before after it.

    Only the main thread can do so; another leaves them as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in ending_signals()}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def leave_terminal(number: int) -> None:
    """Discard what is printed after SIGHUP: the terminal is gone, and writing to it fails."""
    if number != signal.SIGHUP:
        return
    for stream in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream)
                os.close(null)
