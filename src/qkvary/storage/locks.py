"""Ownership of folders: kernel locks, which are released when the owner dies.

The lock file is never removed, since only its lock matters; its contents are for messages only.
"""

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.durable import explain_os_errors
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError
from qkvary.storage.jsonvalues import decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a lock."""

    pid: int
    """Process ID."""
    host: str
    """Host name."""
    since: str
    """ISO 8601, UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class OwnerLock:
    """An exclusive lock, held from construction until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Acquire the lock at ``path``.

        Raises:
            BusyError: if another process holds it; the message names the owner.
            ResourceError: if the file cannot be written.
        """
        self.path = path
        with explain_os_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self) -> None:
        with explain_os_errors(self.path):
            is_mine = self._try()
        if not is_mine:
            owner = read_owner(self.path)
            raise BusyError(
                f"{self.path.parent} is in use by {owner or 'a starting process'}; wait for it or "
                "stop it"
            )
        owner = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": now(),
        }
        with explain_os_errors(self.path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, encode(owner).encode(), 0)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock at ``path``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock, so that concurrent checks do not see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_owner(path: Path) -> Owner | None:
    """Return the last owner of the lock at ``path``, or None if unknown."""
    try:
        fields = cast("dict[str, Any]", decode(path.read_bytes()))
        return Owner(pid=fields["pid"], host=fields["host"], since=fields["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
