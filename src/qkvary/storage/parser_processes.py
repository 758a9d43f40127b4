"""Native parsers of untrusted files, each in a separate process with limits on time and memory.

Native code can panic, run for minutes without reacting to a signal, or fill the memory; then only
its own process ends. Torch-free.
"""

import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import IO, Any, cast

from qkvary.storage.posix import resource
from qkvary.storage.untrusted_files import short_reason

PARSER_SECONDS = 5.0
"""Maximum processor seconds of a native parser for a file or a short text."""
PARSER_BYTES = 2**31
"""Maximum address space of a native parser's process, in bytes."""
PARSER_CHARACTERS_PER_SECOND = 20_000
"""The time limit grows by one second for this number of characters of a text. Tokenizers need a
tenth of this time or less."""
PARSER_BYTES_PER_CHARACTER = 1024
"""Additional address space for each character of a text, in bytes."""


class ParserProcess:
    """A program that answers requests; if a request kills the program, the program is restarted."""

    def __init__(self, module: str, content: str) -> None:
        """Prepare the program ``module``, which calls ``serve``.

        The program is started before the first request, and first receives the file's ``content``.
        """
        self._module, self._content = module, content
        self._lock = Lock()
        self._owner, self._process = 0, None

    def ask(self, request: object, *, characters: int = 0) -> Any:
        """Return the answer to a request; the limits grow with the ``characters`` of its text."""
        with self._lock:
            # A process that was inherited through a fork belongs to the parent.
            if self._process is None or self._owner != os.getpid():
                self._start()
            return self._exchange(request, characters)

    def _start(self) -> None:
        path = os.pathsep.join(folder for folder in sys.path if folder)
        # -P: the working directory, which may hold a stranger's modules, is not searched.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._owner = os.getpid()
        self._stop = weakref.finalize(self, _stop, self._process, self._owner)
        try:
            self._exchange(self._content, 0)
        except ValueError:
            self._process = None
            self._stop()
            raise

    def _exchange(self, request: object, characters: int) -> Any:
        seconds = PARSER_SECONDS + characters / PARSER_CHARACTERS_PER_SECOND
        size = PARSER_BYTES + characters * PARSER_BYTES_PER_CHARACTER
        process = cast("subprocess.Popen[bytes]", self._process)
        requests, answers = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        line = b""
        try:
            with suppress(BrokenPipeError):
                requests.write(json.dumps([seconds, size, request]).encode() + b"\n")
                requests.flush()
                line = answers.readline()
        finally:
            # Also on an interrupt: a late answer would be taken for that of the next request.
            if not line.endswith(b"\n"):
                self._process = None
                self._stop()
        if not line.endswith(b"\n"):
            raise ValueError(_explain_end(process.returncode, seconds))
        answer = json.loads(line)
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["found"]


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if owner != os.getpid():
        return
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            cast("IO[bytes]", stream).close()
    # The exit status is lost if the process is killed before it ends by itself.
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.kill()
    process.wait()


def _explain_end(code: int, seconds: float) -> str:
    if code == -signal.SIGPROF:
        return f"the parser of this file took more than {seconds:.0f} seconds"
    how = signal.Signals(-code).name if code < 0 else f"code {code}"
    return (
        f"the parser of this file stopped with {how}, which usually means that the parser ran out "
        "of memory"
    )


def serve(load: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Answer requests with a function that ``load`` makes from the file's content."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handle: Callable[[Any], Any] | None = None
    while line := sys.stdin.buffer.readline():
        seconds, size, request = json.loads(line)
        with suppress(ValueError, OSError):
            # Not every system limits the address space.
            resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        # The timer's signal ends the process, whatever it is doing.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            if handle is None:
                handle, found = load(request), None
            else:
                found = handle(request)
            answer = {"found": found}
        # A panic in Rust is not an Exception.
        except BaseException as error:  # noqa: BLE001
            answer = {"refused": short_reason(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()
