"""The most memory that a piece of work takes, measured in a process that does nothing else.

On Linux the high-water mark of the resident memory, set back before the work begins; elsewhere what
the system says of the whole process. The allocator gives back what is freed, so that the mark is
that of memory in use.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Settings of the process: every larger block is a mapping, returned when freed. Otherwise glibc
raises this limit and keeps freed blocks, which hide what later work takes."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes of a process."""

    before: int
    """When the work began: the program and its libraries."""
    most: int
    """At most, from then on."""
    seconds: float
    """CPU time of the work."""

    @property
    def added(self) -> int:
        """What the work took."""
        return self.most - self.before


def measure_in_subprocess(arguments: Sequence[str]) -> Peak:
    """Call the running benchmark again, which answers with ``tell_peak``.

    Args:
        arguments: What it is given, so that it knows what to do.
    """
    path = os.pathsep.join(place for place in sys.path if place)
    done = subprocess.run(
        [sys.executable, str(Path(sys.argv[0]).resolve()), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ALLOCATOR, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def tell_peak(work: Callable[[], object]) -> None:
    """Do the work and print its peak, for the process that asked."""
    reset_peak()
    before, start = read_memory("VmRSS:"), time.process_time()
    work()
    peak = Peak(before=before, most=read_memory("VmHWM:"), seconds=time.process_time() - start)
    print(json.dumps(asdict(peak)), flush=True)


def reset_peak() -> str:
    """Reset the high-water mark of resident memory; return the name of the counter to read."""
    if not _STATUS.exists():
        return "ru_maxrss"
    with suppress(OSError):
        # Without the reset the mark is an upper bound, exact if the work takes more than loading.
        _CLEAR_REFS.write_text(_RESET_PEAK)
    return "VmHWM"


def read_memory(name: str) -> int:
    """Return the bytes of a line of ``/proc/self/status``; elsewhere the peak of the process."""
    if _STATUS.exists():
        lines = _STATUS.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
