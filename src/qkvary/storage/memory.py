"""Free memory, checked before something large is built. Never imports torch.

Linux promises more memory than it has and ends a process that uses it, so running out cannot be
caught there: what needs too much must be refused beforehand.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from qkvary.storage.errors import ResourceError
from qkvary.text.units import data_size

_MEMORY = Path("/proc/meminfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def free_memory_bytes() -> int | None:
    """Return the bytes that a new allocation can use, or None if unknown."""
    found = [size for size in (_system_bytes(), _container_bytes()) if size is not None]
    return min(found, default=None)


def require_memory(needed: int, purpose: str, advice: str) -> None:
    """Check that this machine has the memory for something on the CPU.

    Args:
        needed: The least number of bytes.
        purpose: The beginning of the message, such as ``the weights take``.
        advice: The end of the message: what to do.

    Raises:
        ResourceError: if there is less.
    """
    free = free_memory_bytes()
    if free is not None and needed > free:
        raise ResourceError(
            f"{purpose} at least {data_size(needed)} of memory, {data_size(free)} are free; "
            f"{advice}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, on the CPU or a device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error))
    )


def _system_bytes() -> int | None:
    with suppress(OSError):
        lines = dict(re.findall(r"^(\w+): +(\d+) kB$", _MEMORY.read_text("utf-8"), re.MULTILINE))
        if "MemAvailable" in lines:
            return 1024 * (int(lines["MemAvailable"]) + int(lines.get("SwapFree", 0)))
    with suppress(OSError, ValueError):
        # All memory of the machine: a bound where free memory is not known.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total if os.sysconf("SC_PHYS_PAGES") > 0 else None
    return None


def _container_bytes() -> int | None:
    with suppress(OSError, ValueError):
        return int(_CONTAINER_LIMIT.read_text("utf-8"))
    return None
