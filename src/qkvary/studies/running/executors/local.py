"""Worker processes of this machine, as an executor of ``concurrent.futures``. Torch-free.

The death of a worker ends the future that it worked on, and no other: pools of the standard library
and of loky end all their workers then.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import IO, Any, cast

from qkvary.studies.running.executors.contract import Executor

WORKER = "qkvary.studies.running.executors.worker"
TAIL_BYTES = 4000
"""Bytes of a worker's stderr to keep, for the record of a run that crashed it."""


class WorkerDiedError(Exception):
    """A worker ended before it had returned a result."""

    def __init__(self, pid: int, code: int, tail: str) -> None:
        try:
            end = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        except ValueError:
            end = f"signal {-code}"
        self.end, self.tail = end, tail
        super().__init__(f"its worker (process {pid}) crashed with {end}")


class LocalExecutor(Executor):
    """Executes each call in one of several processes, which are started when they are needed."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._calls: SimpleQueue[tuple[Future[Any], Any] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._processes: set[_Worker] = set()
        self._is_ending = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call of a function that a worker can import."""
        future = Future[Any]()
        self._calls.put((future, (fn, args, kwargs)))
        if len(self._threads) < self._workers:
            thread = threading.Thread(target=self._serve, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _serve(self) -> None:
        """Pass calls to one worker at a time, and replace it if it ends."""
        worker: _Worker | None = None
        while (item := self._calls.get()) is not None:
            future, call = item
            if self._is_ending:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            worker = self._settle(future, call, worker)
        if worker is not None:
            self._processes.discard(worker)
            worker.close()

    def _settle(self, future: Future[Any], call: Any, worker: "_Worker | None") -> "_Worker | None":
        """Settle a future; return the worker for the next call."""
        while True:
            try:
                if worker is None:
                    worker = _Worker()
                    self._processes.add(worker)
                if self._is_ending:
                    # It may have been started while the others were stopped.
                    worker.process.terminate()
                future.set_result(worker.call(call))
            except EOFError:
                dead, worker = cast("_Worker", worker), None
                self._processes.discard(dead)
                code = dead.close()
                if code == 128 + signal.SIGTERM and not self._is_ending:
                    # This worker alone was terminated, and left its run in order.
                    continue
                future.set_exception(WorkerDiedError(dead.process.pid, code, dead.tail))
            except BaseException as error:  # noqa: BLE001  it is the future's
                future.set_exception(error)
            return worker

    def stop(self) -> None:
        """Drop the calls that wait; send SIGTERM to the workers, which end after their call."""
        self._is_ending = True
        for worker in [*self._processes]:
            worker.process.terminate()

    def kill(self) -> None:
        """Kill the workers."""
        self._is_ending = True
        for worker in [*self._processes]:
            worker.process.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers once they have ended their calls."""
        self._is_ending |= cancel_futures
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()


class _Worker:
    """A worker process.

    It has a separate process group, so that Ctrl-C reaches only the runner, which then stops its
    workers.
    """

    def __init__(self) -> None:
        path = os.pathsep.join(folder for folder in sys.path if folder)
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )
        stdin, stdout = (
            cast("IO[bytes]", pipe) for pipe in (self.process.stdin, self.process.stdout)
        )
        self._calls = Connection(os.dup(stdin.fileno()), readable=False)
        self._results = Connection(os.dup(stdout.fileno()), writable=False)
        stdin.close()
        stdout.close()
        self._tail = b""
        self._reader = threading.Thread(target=self._read_tail, daemon=True)
        self._reader.start()

    def call(self, call: Any) -> Any:
        """Return or raise what a call returns or raises.

        Raises:
            EOFError: if the process ends before.
        """
        try:
            self._calls.send(call)
            is_result, value = self._results.recv()
        except OSError as error:
            raise EOFError(str(error)) from error
        if not is_result:
            raise value
        return value

    def _read_tail(self) -> None:
        stderr = cast("IO[bytes]", self.process.stderr)
        while data := os.read(stderr.fileno(), 65536):
            self._tail = (self._tail + data)[-TAIL_BYTES:]

    @property
    def tail(self) -> str:
        """The end of its stderr."""
        return self._tail.decode("utf-8", "replace").strip()

    def close(self) -> int:
        """Let the process end; return its exit code, negative for a signal."""
        self._calls.close()
        code = self.process.wait()
        self._reader.join()
        self._results.close()
        cast("IO[bytes]", self.process.stderr).close()
        return code
