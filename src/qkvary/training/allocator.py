"""Settings of the memory allocator for training. Torch-free.

Each step allocates the same memory as the one before. By default glibc returns freed memory to the
system, which zeroes it page by page on the next allocation: 2 to 4 % of a step on a CPU. No number
of a run depends on it.
"""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1
_MAPPED_BYTES = 2**25
"""Larger blocks are mapped separately, which avoids fragmentation; the maximum of glibc itself."""


def keep_freed_memory() -> bool:
    """Make this process reuse freed memory; meant for processes that only train.

    Returns:
        Whether the allocator supports it (glibc on Linux does).
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_TRIM_THRESHOLD, _LARGEST))
