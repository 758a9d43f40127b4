"""Describes this machine and process: versions, devices, memory, data folders; handles signals.

Linux promises more memory than it has and kills processes that use it, so running out of memory
cannot be caught. Work that needs too much memory is therefore refused beforehand. The first signal
stops long work cleanly, after a checkpoint; a second signal ends the process. Never imports torch.
"""

import functools
import os
import platform
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from qkvary.storage.errors import ResourceError, UsageError
from qkvary.text.numbers import Reads, data_size, read_count
from qkvary.text.progress_line import discard

MOST_THREADS = 1024
"""Maximum number of threads or processes; a larger number is taken for a typing error."""
_MEMORY = Path("/proc/meminfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_device(device: str) -> None:
    """Refuse an invalid device name; whether the device exists is checked when it is used."""
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]{1,3})?", device):
        raise UsageError(f"expected a device such as cpu, cuda, cuda:1 or mps, got {device!r}")


@contextmanager
def without_downloads() -> Generator[None]:
    """Prevent downloads inside the block, as with ``HF_HUB_OFFLINE``."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def now() -> str:
    """Return the current time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def package_version(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu_field(name: str) -> str:
    """Return a field of the processor, such as ``vendor_id``; an empty text if unknown."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def _commit() -> str | None:
    """Return the commit of the source checkout, followed by ``+`` if files have changed since."""
    source = Path(__file__).parent
    try:
        result = subprocess.run(
            ["git", "-C", str(source), "describe", "--always", "--abbrev=40", "--dirty=+"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


@functools.cache
def machine() -> dict[str, Any]:
    """Return the versions, platform and processor of this process."""
    return {
        "qkvary": package_version("qkvary"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "platform": platform.platform(),
        "cpu": cpu_field("model name") or platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count(),
    }


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def default_threads() -> int:
    """Return the number of threads that ``OMP_NUM_THREADS`` sets, or else of usable cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(int(given), MOST_THREADS) if re.fullmatch("[1-9][0-9]*", given) else usable_cores()


def read_threads(given: object, name: str) -> int:
    """Return a number of threads or processes, parsing text such as ``1k``."""
    number = read_count(given, name)
    if number > MOST_THREADS:
        raise ResourceError(f"{name}: expected at most {MOST_THREADS:,}, got {number:,}")
    return number


Threads = Annotated[int, Reads(read_threads)]
"""A number of threads or processes."""


def free_memory_bytes() -> int | None:
    """Return the bytes that a new allocation can use, or None if unknown."""
    found: list[int] = []
    with suppress(OSError):
        lines = dict(re.findall(r"^(\w+): +(\d+) kB$", _MEMORY.read_text("utf-8"), re.MULTILINE))
        if "MemAvailable" in lines:
            found.append(1024 * (int(lines["MemAvailable"]) + int(lines.get("SwapFree", 0))))
    if not found:
        with suppress(OSError, ValueError):
            # If free memory is not known, the machine's whole memory is an upper bound.
            pages = os.sysconf("SC_PHYS_PAGES")
            found += [pages * os.sysconf("SC_PAGE_SIZE")] if pages > 0 else []
    with suppress(OSError, ValueError):
        found.append(int(_CONTAINER_LIMIT.read_text("utf-8")))
    return min(found, default=None)


def require_memory(needed: int, purpose: str, advice: str) -> None:
    """Refuse work that needs more memory than is free; the error has ``purpose`` and ``advice``."""
    free = free_memory_bytes()
    if free is not None and needed > free:
        raise ResourceError(
            f"{purpose} at least {data_size(needed)} of memory, but {data_size(free)} are free; "
            f"{advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or a device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error))
    )


def data_root() -> Path | None:
    """Return the folder of local data sets, ``$QKVARY_DATA``."""
    named = os.environ.get("QKVARY_DATA")
    return Path(named) if named else None


def cache_directory() -> Path | None:
    """Return ``$QKVARY_CACHE``, or ``qkvary`` in the user's cache directory; None without one."""
    for name, below in (("QKVARY_CACHE", "."), ("XDG_CACHE_HOME", "qkvary")):
        if os.environ.get(name):
            return Path(os.environ[name]) / below
    try:
        return Path.home() / ".cache" / "qkvary"
    except RuntimeError:
        return None


# ---- signals


STOPPING = "stopping after a checkpoint; interrupt again to stop at once"
"""The message printed at the first signal."""


@dataclass(slots=True)
class Stop:
    """A request to stop, which the first signal sets."""

    number: int = 0
    """The number of the signal; 0 if there was none."""

    def is_set(self) -> bool:
        """Return whether a signal has asked the work to stop."""
        return self.number != 0


NEVER = Stop()


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end work, except ignored ones, such as SIGHUP under nohup."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return tuple(one for one in signals if signal.getsignal(one) is not signal.SIG_IGN)


@contextmanager
def stop_in_order(
    *, announce: bool = False, end: Callable[[], object] = lambda: None
) -> Generator[Stop]:
    """Ask the work inside the block to stop at the first signal; the second ends the process.

    A second signal that is SIGHUP changes nothing: it says that the output is lost, not to hurry.
    Only the main thread can handle signals; in other threads, nothing is changed.

    Args:
        announce: Whether the first signal prints on standard error that the work is stopping.
        end: Called at the second signal, before the process ends. It may interrupt any code of the
            block, so it must neither print nor wait for a lock of this process.

    Yields:
        The request to stop, which the first signal sets.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def receive(number: int, _frame: FrameType | None) -> None:
        leave_terminal(number)
        if stop.is_set():
            # The first Ctrl-C may also have ended the reader of the output, which is a hang-up.
            if number == signal.SIGHUP:
                return
            end()
            os._exit(128 + number)
        stop.number = number
        if announce:
            # Streams may be in use: they cannot be written to in the handler of a signal.
            with suppress(OSError):
                os.write(2, f"\n{STOPPING}\n".encode())

    before = {number: signal.signal(number, receive) for number in ending_signals()}
    try:
        yield stop
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
                discard(stream)
