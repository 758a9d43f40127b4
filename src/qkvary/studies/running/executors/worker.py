"""The program of a local worker process: reads calls, executes them, writes the results.

When the pipe closes because the runner ended or was killed, the current run writes a checkpoint.
"""

import faulthandler
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

from qkvary.studies.running.cells import RUNNER_GONE


def serve() -> int:
    """Serve calls until there are no more; return the exit code."""
    faulthandler.enable()
    answers = Connection(os.dup(1), readable=False)
    # Libraries print; the original standard output is for results.
    os.dup2(2, 1)
    # The runner gets these signals too, and stops its workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    calls: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(calls,), daemon=True).start()
    while (call := calls.get()) is not None:
        try:
            function, *args = ForkingPickler.loads(call)  # pyright: ignore[reportAttributeAccessIssue]
            answer = True, function(*args)
        # The exception is raised in the process that made the call.
        except Exception as error:  # noqa: BLE001
            answer = False, error
        try:
            answers.send(answer)
        except BrokenPipeError:
            break
        if number := getattr(answer[1], "signal", 0):
            # A process that was asked to end takes no other task.
            return 128 + number
    return 0


def _read(calls: queue.SimpleQueue[bytes | None]) -> None:
    """Read calls in a separate thread, so that the end of the pipe is noticed even during a call.

    The end of the pipe stops the call that is in progress.
    """
    pipe = Connection(os.dup(0), writable=False)
    with suppress(EOFError, OSError):
        while True:
            calls.put(pipe.recv_bytes())
    RUNNER_GONE.set()
    calls.put(None)


if __name__ == "__main__":
    sys.exit(serve())
