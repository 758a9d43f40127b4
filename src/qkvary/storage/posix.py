"""The standard library modules that only POSIX systems have; no other file imports them."""

import sys

from qkvary.storage.errors import SystemNotSupportedError

try:
    import fcntl
    import pwd
    import resource
except ImportError as error:
    raise SystemNotSupportedError(
        f"qkvary needs Linux or macOS, got {sys.platform}, which has no {error.name}; on Windows, "
        "run it in WSL"
    ) from None

__all__ = ["fcntl", "pwd", "resource"]
