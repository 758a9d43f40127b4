"""Python processes that are forked from this one, since a started one imports torch for seconds.

Like a started process they have their own process ID, signals, files and memory; unlike it they
have what was imported before. Tests of starting, of imports and of peak memory use ``subprocess``.
"""

import contextlib
import faulthandler
import gc
import inspect
import os
import runpy
import signal
import subprocess
import sys
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from qkvary.studies.running.executors import local

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
"""The ends of the pipes to a child process, as ``subprocess`` names them."""


class ForkedPython(subprocess.Popen[Any]):
    """``subprocess.Popen`` of this interpreter: of a module, of ``-c`` and code, or of a file."""

    def _execute_child(self, *values: Any) -> None:
        if "tests.fake_device" in sys.modules:
            # Autograd's threads for that device do not survive a fork.
            raise RuntimeError("run tests/contracts/on_fake_device*.py in a pytest of their own")
        start = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
        given = start.bind(self, *values).arguments
        # A signal must not reach the handlers of this process in the fork.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with warnings.catch_warnings():
            # Newer versions of Python warn of other threads; here these only wait for orders.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _become(given)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._child_created = True
        self._close_pipe_fds(*(given[end] for end in PIPES))  # type: ignore[attr-defined]


def _become(given: Mapping[str, Any]) -> None:
    """Become the process that was requested, and end as it ends."""
    code = 1
    try:
        gc.freeze()
        faulthandler.disable()
        _set_up(given)
        _run(given["args"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  the exit code says it
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _set_up(given: Mapping[str, Any]) -> None:
    if given["start_new_session"]:
        os.setsid()
    elif given["process_group"] >= 0:
        os.setpgid(0, given["process_group"])
    # Mapped files close their descriptor when they are dropped: here, not when it is another's.
    if training := sys.modules.get("qkvary.studies.running.training"):
        training.load_cell_task.cache_clear()
    # Copies first: the end of one pipe may have the number of another stream.
    ends = [given[end] for end in ("p2cread", "c2pwrite", "errwrite")]
    copies = [os.dup(number if end < 0 else end) for number, end in enumerate(ends)]
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False, buffering=1 if number == 2 else -1)
        for number, mode in enumerate("rww")
    )
    if given["env"] is not None:
        os.environ.clear()
        os.environ.update(given["env"])
    if given["cwd"] is not None:
        os.chdir(given["cwd"])
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _run(args: Sequence[str]) -> None:
    kind, *words = args[1:]
    if kind == "-c":
        sys.argv = ["-c", *words[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[0], "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102
    elif kind == "-m":
        sys.argv = list(words)
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *words]
        runpy.run_path(kind, run_name="__main__")


def run(*args: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` of this interpreter."""
    given, _ = options.pop("input"), options.pop("check")
    if options.pop("capture_output"):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ForkedPython(*args, stdin=subprocess.PIPE, **options) as process:
        out, err = process.communicate(given)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Let runners of studies fork their workers."""
    forking = types.SimpleNamespace(Popen=ForkedPython, PIPE=subprocess.PIPE)
    patch.setattr(local, "subprocess", forking)
