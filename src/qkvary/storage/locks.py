"""Who owns a folder: a lock of the kernel, which ends with the process that holds it.

The lock file is never removed; whether it is locked decides, not whether it is there. What stands
inside is for messages only.
"""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.durable import writing
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError
from qkvary.storage.jsonvalues import decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a lock."""

    pid: int
    """Process number."""
    host: str
    """Name of the machine."""
    since: str
    """ISO 8601, UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class OwnerLock:
    """An exclusive lock, held from construction until ``release`` or the death of the process."""

    def __init__(self, path: Path) -> None:
        """Take the lock at ``path``.

        Raises:
            BusyError: if somebody else holds it; the message names them.
            ResourceError: if the file cannot be written.
        """
        self.path = path
        with writing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self) -> None:
        with writing(self.path):
            is_mine = self._try()
        if not is_mine:
            owner = read_owner(self.path)
            raise BusyError(
                f"{self.path.parent} is in use by {owner or 'a process that is just starting'}; "
                "wait for it or stop it"
            )
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": now(),
        }
        with writing(self.path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, encode(owner).encode(), 0)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let others have it."""
        os.close(self._descriptor)


def is_held(path: Path) -> bool:
    """Return whether a living process holds the lock at ``path``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock: two that look at once do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_owner(path: Path) -> Owner | None:
    """Return who last took the lock at ``path``, or None if that is not known."""
    try:
        fields = cast("dict[str, Any]", decode(path.read_bytes()))
        return Owner(pid=fields["pid"], host=fields["host"], since=fields["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
