"""The runner's side of one worker process: its pipes, its news, its last words, its death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, cast

from qkvary.studies.running.messages import Job, News

TAIL_BYTES = 4000
"""How much of what a worker printed is kept, for the record of a run that it died of."""


class WorkerProcess:
    """One worker, from its start to its end.

    It gets a process group of its own, so that Ctrl-C at the terminal reaches the runner only,
    which then asks its workers to stop.
    """

    def __init__(self, number: int, module: str, job: Job) -> None:
        """Start ``python -m module`` and send it the job.

        Args:
            number: Tells this worker from the others, for people.
            module: The program of the worker.
            job: What it is to do.
        """
        self.number = number
        self.cell: int | None = None
        """Number of the run that it is making."""
        self.ready = False
        """Whether it came to life: a worker that dies before has not died of a run."""
        path = os.pathsep.join(place for place in sys.path if place)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._news = cast("IO[bytes]", self._process.stdout)
        self._printed = cast("IO[bytes]", self._process.stderr)
        self._rest = b""
        self._tail = b""
        self._asked_to_stop = False
        # In a thread, because a worker reads its job only after it has imported what it needs.
        self._sender = threading.Thread(target=self._send, args=(job.to_line(),), daemon=True)
        self._sender.start()

    def _send(self, line: bytes) -> None:
        with suppress(OSError, ValueError):
            self._input.write(line)
            self._input.flush()

    @property
    def news_pipe(self) -> int:
        """Descriptor to wait on for news."""
        return self._news.fileno()

    @property
    def tail_pipe(self) -> int:
        """Descriptor to wait on for what it prints."""
        return self._printed.fileno()

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    @property
    def tail(self) -> str:
        """The last that it printed."""
        return self._tail.decode("utf-8", "replace").strip()

    def read_news(self) -> list[News] | None:
        """Return what it has said since the last time, or None if it will say nothing more."""
        data = os.read(self.news_pipe, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        news: list[News] = []
        for line in lines:
            try:
                news.append(News.from_line(line))
            except ValueError:
                self._keep(line + b"\n")
        return news

    def read_tail(self) -> bool:
        """Take in what it printed; return whether more may come."""
        data = os.read(self.tail_pipe, 65536)
        self._keep(data)
        return bool(data)

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def stop(self) -> None:
        """Ask it to write a checkpoint and end."""
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.terminate()

    def kill(self) -> None:
        """End it at once; the run that it is making goes on from its newest checkpoint later."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end, and give its pipes back.

        Returns:
            The exit code, negative for a signal.
        """
        code = self._process.wait()
        self._sender.join()
        for pipe in (self._news, self._printed, self._input):
            with suppress(OSError):
                pipe.close()
        return code


def describe_end(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
