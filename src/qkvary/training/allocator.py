"""What the allocator does with memory that a step of training has freed. Never imports torch.

Each step asks for the same memory as the one before. Left alone, glibc hands what is freed back to
the system, and the system fills it with zeros, page by page, when it is asked for again: 2 to 4 %
of a step on a CPU. No number of a run depends on it.
"""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1
_MAPPED_BYTES = 2**25
"""Larger blocks stay mappings of their own, which leave no holes; glibc gets here by itself."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for its next step; for processes that only train.

    Returns:
        Whether the allocator listens: that of Linux with glibc does.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_TRIM_THRESHOLD, _LARGEST))
