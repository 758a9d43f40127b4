"""Run an engine as a child process: start it, wait until it answers, forward signals, clean up.

The child runs in a separate session, so that Ctrl-C reaches it once, through this process. On Linux
it also ends when this process is killed.
"""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

from qkvary.inference.engines import CacheLine, Engine, Serving
from qkvary.storage.environment import ending_signals
from qkvary.storage.errors import ResourceError, StoppedError, UsageError

PATIENCE = 10.0
"""Seconds that an engine has to stop before it is killed."""
POLL = 0.1
"""Seconds between two checks of an engine that starts."""
LAST_LINES = 4_000
"""Number of characters at the end of a log that are read to find its last line."""
LOCAL = ("127.0.0.1", "::1", "localhost")
_PR_SET_PDEATHSIG = 1


def choose_port(host: str, port: int) -> int:
    """Return ``port`` if it is free. If ``port`` is 0, return any free port."""
    try:
        family = socket.getaddrinfo(host, port)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((host, port))
            return place.getsockname()[1]
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"expected a free port on {host}, got {port}: {reason}; --port 0 takes any free port"
        ) from error


def check_key(host: str, key: str | None) -> None:
    """Raise a ``UsageError`` if other machines can reach ``host`` and there is no key."""
    if key is None and host not in LOCAL:
        raise UsageError(
            f"expected --key-file with the address {host}, which other machines can reach; for "
            f"example, a file that contains {secrets.token_urlsafe(16)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running engine that answers requests."""

    url: str
    """The base URL of the OpenAI-compatible API."""
    cache: CacheLine | None
    """The size of the engine's cache, if the engine has logged it."""
    process: "subprocess.Popen[bytes]"

    def wait(self) -> int:
        """Wait until the engine ends, and return its exit code."""
        return self.process.wait()


@contextmanager
def run_engine(
    engine: Engine, asked: Serving, program: tuple[str, ...], log: Path
) -> Generator[Server]:
    """Run an engine until the ``with`` block ends."""
    launch = engine.launch(program, asked)
    with ExitStack() as stack:
        # Python delivers signals to the main thread only, and raises an error itself at Ctrl-C.
        ending = {*ending_signals()} - {signal.SIGINT}
        for number in ending if current_thread() is main_thread() else ():
            stack.callback(signal.signal, number, signal.signal(number, _stop))
        output = stack.enter_context(log.open("wb"))
        leash = None
        if sys.platform == "linux":
            # The child calls it, so that it dies with this process.
            leash = partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
        process = subprocess.Popen(
            launch.command,
            env={**os.environ, **launch.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # It makes a single system call, which cannot deadlock on another thread's lock.
            preexec_fn=leash,  # noqa: PLW1509
        )
        stack.callback(_end, process)
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(asked.host, asked.host)  # noqa: S104
        shown = f"[{near}]" if ":" in near else near
        address = f"http://{shown}:{asked.port}"
        while not _answers(address + engine.health, asked.key):
            time.sleep(POLL)
            _check_running(engine, process, log)
        # Another program that took the port may be answering.
        _check_running(engine, process, log)
        cache = engine.read_cache(log.read_text("utf-8", errors="replace"))
        yield Server(url=f"{address}/v1", cache=cache, process=process)


def _check_running(engine: Engine, process: "subprocess.Popen[bytes]", log: Path) -> None:
    if process.poll() is not None:
        raise ResourceError(describe_end(engine, process.returncode, log))


def describe_end(engine: Engine, code: int, log: Path) -> str:
    """Return a sentence that says how and why an engine ended."""
    text = log.read_text("utf-8", errors="replace")
    lines = [line for line in text[-LAST_LINES:].splitlines() if line.strip()]
    reason = engine.explain(text) or (lines[-1].strip() if lines else "it printed nothing")
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    return f"{engine.title} ended with {how}: {reason}; its log is {log}"


def _answers(url: str, key: str | None) -> bool:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    # The URL was built above: http, on this machine.
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _stop(number: int, _frame: FrameType | None) -> None:
    raise StoppedError(number, "stopped")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End an engine and everything it started; a second Ctrl-C kills it."""
    try:
        _signal(process, signal.SIGTERM)
        process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, StoppedError):
        pass
    finally:
        # Kills the whole process group, including processes that outlive the engine.
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
