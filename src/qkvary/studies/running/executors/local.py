"""Worker processes of this machine, as an executor of ``concurrent.futures``. Torch-free.

If a worker dies, only the call that it executed fails; the process pools of the standard library
and of loky would end all their workers.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import IO, Any, cast

from qkvary.storage.environment import usable_cores
from qkvary.studies.running.executors.contract import Executor

WORKER = "qkvary.studies.running.executors.worker"
TAIL_BYTES = 4000
"""Bytes kept from the end of a worker's stderr, for the record of a run that crashed the worker."""


class WorkerDiedError(Exception):
    """A worker ended before it had returned a result."""

    def __init__(self, pid: int, code: int, tail: str) -> None:
        try:
            end = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        except ValueError:
            end = f"signal {-code}"
        self.tail = tail
        super().__init__(f"its worker (process {pid}) crashed with {end}")


class LocalExecutor(Executor):
    """Executes each call in one of several processes, which are started on demand."""

    def __init__(self, workers: int | None = None) -> None:
        """Create an executor with a number of workers, by default one per usable core."""
        self._threads = ThreadPoolExecutor(workers or usable_cores())
        self._own = threading.local()
        self._workers: set[_Worker] = set()
        self._is_ending = False

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:  # type: ignore[override]
        """Submit a call of a function that a worker can import."""
        return self._threads.submit(self._call, (fn, *args))

    def _call(self, call: tuple[Any, ...]) -> Any:
        """Pass a call to the worker of this thread; replace a worker that has ended."""
        while True:
            if self._is_ending:
                raise CancelledError
            worker: _Worker = getattr(self._own, "worker", None) or _Worker()
            self._own.worker = worker
            self._workers.add(worker)
            if self._is_ending:
                # This worker may have started while the others were being stopped.
                worker.process.terminate()
            try:
                return worker.call(call)
            except EOFError:
                self._own.worker = None
                self._workers.discard(worker)
                code = worker.close()
                if code != 128 + signal.SIGTERM or self._is_ending:
                    raise WorkerDiedError(worker.process.pid, code, worker.tail) from None
                # Only this worker was terminated, and it left its run in a resumable state.

    def stop(self) -> None:
        """Drop waiting calls. Send SIGTERM to the workers; they end after their current call."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Drop waiting calls; kill the workers."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        # Takes no lock: the main thread may be interrupted here by a signal whose handler kills.
        self._is_ending = True
        for worker in [*self._workers]:
            worker.process.send_signal(number)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers once they have finished their calls."""
        self._threads.shutdown(wait=wait, cancel_futures=cancel_futures)
        for worker in self._workers if wait else ():
            worker.close()


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

    def call(self, call: tuple[Any, ...]) -> Any:
        """Return the result of a call, or raise its error."""
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
        """The end of the worker's stderr."""
        return self._tail.decode("utf-8", "replace").strip()

    def close(self) -> int:
        """Let the process end; return its exit code, negative for a signal."""
        self._calls.close()
        code = self.process.wait()
        self._reader.join()
        self._results.close()
        cast("IO[bytes]", self.process.stderr).close()
        return code
