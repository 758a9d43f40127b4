"""Ownership of folders: kernel locks, which are released when the owner dies.

The lock file is never removed, since only its lock matters. Its contents name the owner and count
the owners that died. An owner removes its name when it releases the lock; one that dies cannot.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.durable import explain_os_errors
from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.posix import fcntl


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a lock."""

    pid: int
    host: str
    since: str
    """When it acquired the lock: ISO 8601, UTC."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The contents of a lock file."""

    owner: Owner | None = None
    """The owner; None once it has released the lock. If nobody holds the lock, this owner died."""
    deaths: int = 0
    """Number of consecutive earlier owners that died without progress."""
    progress: str = ""
    """The progress of the work when the lock was acquired."""

    def count_deaths(self, progress: str) -> int:
        """Return how many owners died since there was progress, if the lock is not held."""
        before = self.deaths if self.progress == progress else 0
        return before + (self.owner is not None)


class OwnerLock:
    """An exclusive lock, held from construction until ``release`` or the end of the process."""

    def __init__(self, path: Path, *, progress: Callable[[], str] = lambda: "") -> None:
        """Acquire the lock; ``progress`` returns that of the work, such as its newest checkpoint.

        Raises:
            BusyError: if another process holds it; the message names the owner.
        """
        self.path = path
        self.deaths = 0
        """Number of earlier owners that died since there was progress."""
        self.last_owner: Owner | None = None
        """The previous owner, if it died."""
        with explain_os_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with explain_os_errors(path):
                self._lock()
            before, self._progress = read_note(path), progress()
            self.deaths, self.last_owner = before.count_deaths(self._progress), before.owner
            self._write(Owner(pid=os.getpid(), host=socket.gethostname(), since=now()))
        except BaseException:
            os.close(self._descriptor)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = read_owner(self.path) or "a starting process"
            raise BusyError(
                f"{self.path.parent} is in use by {owner}; wait for it or stop it"
            ) from None

    def _write(self, owner: Owner | None) -> None:
        fields = {} if owner is None else asdict(owner)
        fields |= {"deaths": self.deaths, "progress": self._progress}
        with explain_os_errors(self.path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, encode(fields).encode(), 0)

    def release(self, *, keep_deaths: bool = False) -> None:
        """Release the lock; ``keep_deaths`` if the next owner should still know of the deaths."""
        try:
            if keep_deaths:
                self._write(None)
            else:
                with explain_os_errors(self.path):
                    os.ftruncate(self._descriptor, 0)
        finally:
            os.close(self._descriptor)


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock at ``path``."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock, so that concurrent checks do not block each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_note(path: Path) -> Note:
    """Return the contents of the lock file at ``path``; an empty note if it has none."""
    try:
        fields = cast("dict[str, Any]", decode(path.read_bytes()))
        names = ("pid", "host", "since")
        owner = Owner(**{name: fields[name] for name in names}) if "pid" in fields else None
        # Lock files of earlier versions do not count deaths.
        deaths, progress = int(fields.get("deaths", 0)), str(fields.get("progress", ""))
        return Note(owner=owner, deaths=deaths, progress=progress)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Note()


def read_owner(path: Path) -> Owner | None:
    """Return the owner of the lock at ``path``, or the owner that died; None if unknown."""
    return read_note(path).owner
