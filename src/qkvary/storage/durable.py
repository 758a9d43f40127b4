"""Atomic, durable writes: a file or folder is complete, or it does not exist.

New bytes go to a temporary name in the same directory, are flushed to the disk, and are renamed
into place; the directory is flushed last. A writer locks its temporary file or folder. A killed
writer loses this lock, so its leftovers can be recognized.

A process owns a folder while it locks the folder's lock file. The lock file is never removed, since
only the lock matters. The lock file names the owner, and counts the owners that died. An owner
removes its name when it releases the lock. The name of an owner that died remains.
"""

import errno
import itertools
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, ResourceError, TargetError, UnsafeError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.posix import fcntl, pwd

TEMPORARY_PREFIX = ".tmp-"

QUARANTINE_PREFIX = "damaged-"
"""Prefix of the folders to which damaged files are moved."""

LOCK_TRIES = 10
LOCK_SECONDS = 0.005
"""Seconds between two tries to acquire a lock."""

_counter = itertools.count()
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL

_ADVICE = {
    errno.ENOSPC: "free some space and start again",
    errno.EDQUOT: "free some space and start again",
    errno.EFBIG: "raise the limit on file sizes and start again",
    errno.EACCES: "make the folder writable, or choose another one",
    errno.EPERM: "make the folder writable, or choose another one",
    errno.EROFS: "make the folder writable, or choose another one",
    errno.ENOENT: "the folder no longer exists; start again",
}


def free_bytes(path: Path) -> int | None:
    """Return the free bytes on the disk of ``path``, or None if unknown."""
    for folder in (path, *path.parents):
        with suppress(OSError):
            usage = os.statvfs(folder)
            return usage.f_bavail * usage.f_frsize
    return None


@contextmanager
def explain_os_errors(path: Path, size: int = 0) -> Generator[None]:
    """Turn an ``OSError`` into an error with advice; ``size`` is the number of bytes to write."""
    try:
        yield
    except OSError as error:
        _explain_target(path, error)
        free = free_bytes(path)
        room = "" if free is None else f" (needs {size:,} bytes, {free:,} are free)"
        advice = _ADVICE.get(error.errno or 0, "check the disk and start again")
        raise ResourceError(
            f"cannot write {path}: {error.strerror or error}{room}; {advice}"
        ) from error


def _explain_target(path: Path, error: OSError) -> None:
    """Raise a more specific error if the path itself is unsuitable."""
    if error.errno in (errno.EACCES, errno.EPERM):
        folder = _nearest(path.parent)
        found = folder.stat()
        raise TargetError(
            f"expected a folder to write to, got {folder}, which belongs to {_owner(found.st_uid)} "
            f"(mode {stat.S_IMODE(found.st_mode):o}): {_ADVICE[error.errno]}"
        ) from error
    refuse_files(path.parent)
    if error.errno == errno.EISDIR and path.is_dir():
        raise TargetError(f"expected a file at {path}, got a folder") from error


def _nearest(path: Path) -> Path:
    """Return the path, or its nearest accessible parent folder."""
    for folder in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            folder.stat()
            return folder
    return Path("/")


def _owner(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def refuse_files(folder: Path) -> None:
    """Check that no file is where a folder or one of its parents is expected."""
    nearest = _nearest(folder)
    if not nearest.is_dir():
        raise TargetError(f"expected a folder at {nearest}, got a file")


def is_writable(folder: Path) -> bool:
    """Return whether a folder is writable or can be created."""
    return os.access(_nearest(folder), os.W_OK)


def check_folder(folder: Path) -> None:
    """Check, ahead of a long computation, that a folder is writable or can be created."""
    refuse_files(folder)
    with explain_os_errors(folder), suppress(FileNotFoundError):
        # The name is too long.
        folder.stat()
    nearest = _nearest(folder)
    with explain_os_errors(nearest / "new"), tempfile.TemporaryFile(dir=nearest):
        pass


def check_file(path: Path) -> None:
    """Check, ahead of a long computation, that a file can be written.

    The folders on its path need not exist yet.
    """
    if path.is_dir():
        raise TargetError(f"expected a file at {path}, got a folder")
    if path.is_file() or not path.exists():
        check_folder(path.absolute().parent)


@contextmanager
def _opened(path: Path, flags: int, *, locked: bool = False) -> Generator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Flush the names in ``directory`` to the disk."""
    with _opened(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def make_directory(directory: Path) -> None:
    """Create ``directory`` and its parents so that they survive a power failure."""
    refuse_files(directory)
    if directory.is_dir():
        return
    make_directory(directory.parent)
    with explain_os_errors(directory):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def _temporary(directory: Path, name: str) -> Path:
    return directory / f"{TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}-{name[:100]}"


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _fill(descriptor: int, blocks: Iterable[bytes | memoryview]) -> None:
    size = 0
    for block in blocks:
        size += len(block)
        _write_all(descriptor, block)
    written = os.fstat(descriptor).st_size
    if written != size:
        raise OSError(errno.EIO, f"expected a file of {size} bytes, got {written}")
    os.fsync(descriptor)


def _write_new(path: Path, blocks: Iterable[bytes | memoryview]) -> None:
    with _opened(path, _NEW) as descriptor:
        _fill(descriptor, blocks)


def write_new_file(path: Path, blocks: Iterable[bytes | memoryview], size: int) -> None:
    """Create a file durably in a folder from ``atomic_directory``."""
    with explain_os_errors(path, size):
        _write_new(path, blocks)


def atomic_write_file(path: Path, data: bytes) -> None:
    """Write a file atomically and durably.

    After a ``ResourceError``, an older file is still in place. Only if the final flush of the
    directory failed is the new file already in place.
    """
    with explain_os_errors(path, len(data)):
        while True:
            temporary = _temporary(path.parent, path.name)
            with _opened(temporary, _NEW, locked=True) as descriptor:
                try:
                    # Another process may have removed the file as a leftover before it was locked.
                    if os.fstat(descriptor).st_nlink == 0:
                        continue
                    _fill(descriptor, [data])
                    temporary.rename(path)
                    break
                except BaseException:
                    with suppress(OSError):
                        temporary.unlink()
                    raise
        sync_directory(path.parent)


def write_output(path: Path, data: bytes) -> None:
    """Write a file that the user named: atomically, or in place if it is not a regular file.

    The rename of an atomic write would replace a device, a pipe or a link.
    """
    if path.is_symlink() or (path.exists() and not path.is_file() and not path.is_dir()):
        with explain_os_errors(path, len(data)), path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), data)
    else:
        atomic_write_file(path, data)


@contextmanager
def atomic_directory(path: Path, size: int = 0) -> Generator[Path]:
    """Yield a temporary folder, which is renamed to ``path`` when the block ends.

    Any process may fill the temporary folder with ``write_new_file``. An existing folder at
    ``path`` is moved aside, and removed once the new folder is in place. If the block raises, or
    this process dies in the block, ``path`` is unchanged.
    """
    with explain_os_errors(path, size):
        temporary = _temporary(path.parent, path.name)
        temporary.mkdir()
        with _opened(temporary, os.O_RDONLY | os.O_DIRECTORY, locked=True) as descriptor:
            try:
                yield temporary
                os.fsync(descriptor)
                old = _temporary(path.parent, path.name) if path.exists() else None
                if old is not None:
                    path.rename(old)
                temporary.rename(path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        sync_directory(path.parent)
        if old is not None:
            shutil.rmtree(old)


def atomic_write_dir(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder that holds exactly ``files`` atomically and durably.

    An existing folder is removed after the new one is durable.
    """
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise UnsafeError(f"expected the name of a file inside {path}, got {name!r}")
    with atomic_directory(path, sum(map(len, files.values()))) as folder:
        for name, data in files.items():
            _write_new(folder / name, [data])


def quarantine(directory: Path, names: Iterable[str]) -> Path:
    """Move files, in this order, into a new folder ``damaged-N``, and return the folder."""
    places = (directory / f"{QUARANTINE_PREFIX}{number}" for number in itertools.count(1))
    place = next(path for path in places if not path.exists())
    make_directory(place)
    with explain_os_errors(place):
        for name in names:
            with suppress(FileNotFoundError):
                (directory / name).rename(place / name)
        sync_directory(place)
        sync_directory(directory)
    return place


def remove_dir(path: Path) -> None:
    """Remove a folder atomically: it is renamed first."""
    with explain_os_errors(path):
        removed = _temporary(path.parent, path.name)
        path.rename(removed)
        sync_directory(path.parent)
        shutil.rmtree(removed)


def remove_file(path: Path) -> None:
    """Remove a file durably, if it exists."""
    with explain_os_errors(path):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)


def clean_leftovers(directory: Path) -> tuple[str, ...]:
    """Remove the leftovers of killed writers in ``directory``; return their names."""
    if not directory.is_dir():
        return ()
    found = sorted(path for path in directory.iterdir() if path.name.startswith(TEMPORARY_PREFIX))
    return tuple(path.name for path in found if _remove_leftover(path))


def _remove_leftover(path: Path) -> bool:
    try:
        with _opened(path, os.O_RDONLY) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError:
        return False
    return True


class AppendFile:
    """An append-only file that survives a killed process and, after ``sync``, a power failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explain_os_errors(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end."""
        with explain_os_errors(self.path, len(data)):
            _write_all(self._descriptor, data)

    def sync(self) -> None:
        """Flush to the disk."""
        with explain_os_errors(self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


# ---- owners of folders


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that owns a lock."""

    pid: int
    host: str
    since: str
    """Time at which the process acquired the lock (ISO 8601, UTC)."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The contents of a lock file."""

    owner: Owner | None = None
    """The owner; None after the lock was released. If the lock is free, the owner has died."""
    deaths: int = 0
    """Number of earlier owners that died since the last release or the last progress."""
    progress: str = ""
    """The progress of the work at the time when the lock was acquired."""

    def count_deaths(self, progress: str) -> int:
        """Return the number of owners that died since the last release or the last progress.

        ``progress`` is the current progress of the work. The number is valid only if the lock is
        free.
        """
        before = self.deaths if self.progress == progress else 0
        return before + (self.owner is not None)


class OwnerLock:
    """An exclusive lock, held from construction until ``release`` or the end of the process."""

    def __init__(self, path: Path, *, progress: Callable[[], str] = lambda: "") -> None:
        """Acquire the lock; ``progress`` returns the progress, such as the newest checkpoint.

        Raises:
            BusyError: if another process holds the lock; the message names the owner.
        """
        self.path, self._is_released = path, False
        self.deaths = 0
        """Number of earlier owners that died since the last release or the last progress."""
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
        for _ in range(LOCK_TRIES):
            # A process that only asks ``is_held`` has the lock for an instant.
            with suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(LOCK_SECONDS)
        owner = read_owner(self.path) or "a starting process"
        raise BusyError(
            f"{self.path.parent} is in use by {owner}; wait for this process or stop it"
        )

    def _write(self, owner: Owner) -> None:
        fields = {**asdict(owner), "deaths": self.deaths, "progress": self._progress}
        with explain_os_errors(self.path):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, encode(fields).encode(), 0)

    def release(self) -> None:
        """Release the lock; further calls do nothing."""
        if self._is_released:
            return
        self._is_released = True
        try:
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
    """Return the contents of the lock file at ``path``; an unreadable file gives an empty note."""
    try:
        fields = cast("dict[str, Any]", decode(path.read_bytes()))
        names = ("pid", "host", "since")
        owner = Owner(**{name: fields[name] for name in names}) if "pid" in fields else None
        return Note(owner=owner, deaths=int(fields["deaths"]), progress=str(fields["progress"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Note()


def read_owner(path: Path) -> Owner | None:
    """Return the owner that the lock file at ``path`` names, even if it died; None if unknown."""
    return read_note(path).owner
