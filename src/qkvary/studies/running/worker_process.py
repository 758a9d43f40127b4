"""The runner's side of a worker process: its pipes, messages, stderr and exit code."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, cast

from qkvary.studies.running.messages import Job, WorkerMessage

TAIL_BYTES = 4000
"""Bytes of a worker's stderr to keep, for the record of a run that crashed it."""


class WorkerProcess:
    """A worker process.

    It has a process group of its own, so that Ctrl-C reaches only the runner, which then stops its
    workers.
    """

    def __init__(self, number: int, module: str, job: Job) -> None:
        """Start ``python -m module`` and send it the job.

        Args:
            number: Number of the worker in the display.
            module: The program of the worker.
            job: The runs to execute.
        """
        self.number = number
        self.cell: int | None = None
        """Number of the current run."""
        self.ready = False
        """Whether it has started: an earlier crash was not caused by a run."""
        path = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._messages = cast("IO[bytes]", self._process.stdout)
        self._printed = cast("IO[bytes]", self._process.stderr)
        self.message_pipe = self._messages.fileno()
        """File descriptor of the messages."""
        self.tail_pipe = self._printed.fileno()
        """File descriptor of its stderr."""
        self.pid = self._process.pid
        """Process ID."""
        self._rest = b""
        self._tail = b""
        self._asked_to_stop = False
        # In a thread, because a worker reads its job only after its imports.
        self._sender = threading.Thread(target=self._send, args=(job.to_line(),), daemon=True)
        self._sender.start()

    def _send(self, line: bytes) -> None:
        with suppress(OSError, ValueError):
            self._input.write(line)
            self._input.flush()

    @property
    def tail(self) -> str:
        """The end of its stderr."""
        return self._tail.decode("utf-8", "replace").strip()

    def read_messages(self) -> list[WorkerMessage] | None:
        """Return the new messages, or None at the end of the pipe."""
        data = os.read(self.message_pipe, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        messages: list[WorkerMessage] = []
        for line in lines:
            try:
                messages.append(WorkerMessage.from_line(line))
            except ValueError:
                self._keep(line + b"\n")
        return messages

    def read_tail(self) -> bool:
        """Read from its stderr; return False at the end."""
        data = os.read(self.tail_pipe, 65536)
        self._keep(data)
        return bool(data)

    def _keep(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def stop(self) -> None:
        """Request a checkpoint and an end."""
        if not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process; its run can be resumed from the newest checkpoint."""
        self._process.kill()

    def wait(self) -> int:
        """Wait for its end and close its pipes.

        Returns:
            The exit code, negative for a signal.
        """
        code = self._process.wait()
        self._sender.join()
        for pipe in (self._messages, self._printed, self._input):
            with suppress(OSError):
                pipe.close()
        return code


def describe_end(code: int) -> str:
    """Describe an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
