"""The one write path: what was written is complete, or it is not there.

New bytes go to a temporary name in the same directory, are flushed to the disk, and are renamed
into place; the directory is flushed last. A writer holds a lock on its temporary file or folder,
which the kernel releases when it dies, so that anybody can tell what a killed writer left behind.

Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from qkvary.storage.errors import ResourceError, UnsafeError

TEMPORARY_PREFIX = ".tmp-"
"""How the name of everything that is not complete begins."""

QUARANTINE_PREFIX = "damaged-"
"""How the name of a folder begins that holds what was found damaged."""

_counter = itertools.count()

_ADVICE = {
    errno.ENOSPC: "free some space and start again",
    errno.EDQUOT: "free some space and start again",
    errno.EFBIG: "raise the limit on file sizes and start again",
    errno.EACCES: "make the folder writable, or choose another one",
    errno.EPERM: "make the folder writable, or choose another one",
    errno.EROFS: "make the folder writable, or choose another one",
    errno.ENOENT: "the folder is gone; start again",
}


def free_bytes(path: Path) -> int | None:
    """Return the bytes that a user may still write beside ``path``, or None if nobody knows."""
    for place in (path, *path.parents):
        with suppress(OSError):
            usage = os.statvfs(place)
            return usage.f_bavail * usage.f_frsize
    return None


@contextmanager
def writing(path: Path, size: int = 0) -> Generator[None]:
    """Turn an error of the operating system into one that a person can act on.

    Args:
        path: What is being written, for the message.
        size: Bytes that it needs.

    Raises:
        ResourceError: if the block raises ``OSError``.
    """
    try:
        yield
    except OSError as error:
        free = free_bytes(path)
        room = "" if free is None else f" (needs {size:,} bytes, {free:,} are free)"
        advice = _ADVICE.get(error.errno or 0, "check the disk and start again")
        raise ResourceError(
            f"cannot write {path}: {error.strerror or error}{room}; {advice}"
        ) from error


def sync_directory(directory: Path) -> None:
    """Flush the names in ``directory`` to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create ``directory`` and its parents so that they survive a power failure.

    Raises:
        ResourceError: if it cannot be created.
    """
    if directory.is_dir():
        return
    make_directory(directory.parent)
    with writing(directory):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def _temporary(directory: Path, name: str) -> Path:
    return directory / f"{TEMPORARY_PREFIX}{os.getpid()}-{next(_counter)}-{name[:100]}"


def _locked(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _fill(descriptor: int, blocks: Iterable[bytes | memoryview]) -> None:
    size = 0
    for block in blocks:
        view = memoryview(block)
        size += len(view)
        while view:
            view = view[os.write(descriptor, view) :]
    written = os.fstat(descriptor).st_size
    if written != size:
        raise OSError(errno.EIO, f"{written} bytes arrived of {size}")
    os.fsync(descriptor)


def _write_new(path: Path, blocks: Iterable[bytes | memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _fill(descriptor, blocks)
    finally:
        os.close(descriptor)


def write_new_file(path: Path, blocks: Iterable[bytes | memoryview], size: int) -> None:
    """Create a file in a folder that ``filling`` gave out, durably.

    Args:
        path: The file; it must not exist.
        blocks: Its bytes, in order.
        size: How many they are.

    Raises:
        ResourceError: if the disk is full, broken or not writable.
    """
    with writing(path, size):
        _write_new(path, blocks)


def atomic_write_file(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``: all of it, durably, or nothing.

    Raises:
        ResourceError: if the disk is full, broken or not writable; what stood at ``path`` before
            still does, unless only the flush of the folder's names failed.
    """
    with writing(path, len(data)):
        while True:
            temporary = _temporary(path.parent, path.name)
            descriptor = _locked(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                # Somebody may have taken the file for a leftover before it was locked.
                if os.fstat(descriptor).st_nlink == 0:
                    continue
                _fill(descriptor, [data])
                temporary.rename(path)
                break
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            finally:
                os.close(descriptor)
        sync_directory(path.parent)


@contextmanager
def filling(path: Path, size: int = 0) -> Generator[Path]:
    """Give out an empty folder; what was put into it stands at ``path`` when the block ends.

    Everybody may fill it, with ``write_new_file``. A folder that stands at ``path`` already is
    removed, after the new one is durable under its temporary name. If the block raises, or this
    process dies in it, nothing was written.

    Args:
        path: Where the folder shall stand.
        size: Bytes that it needs, for the message where they do not fit.

    Raises:
        ResourceError: if the disk is full, broken or not writable.
    """
    with writing(path, size):
        temporary = _temporary(path.parent, path.name)
        temporary.mkdir()
        descriptor = _locked(temporary, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield temporary
            os.fsync(descriptor)
            if path.exists():
                remove_dir(path)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            os.close(descriptor)
        sync_directory(path.parent)


def atomic_write_dir(path: Path, files: Mapping[str, bytes]) -> None:
    """Put a folder that holds exactly ``files`` at ``path``: all of it, durably, or nothing.

    A folder that stands there already is removed, after the new one is durable under its temporary
    name.

    Raises:
        ResourceError: if the disk is full, broken or not writable.
        UnsafeError: if a name would leave the folder.
    """
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise UnsafeError(f"{name!r} is no name for a file inside {path}")
    with filling(path, sum(map(len, files.values()))) as folder:
        for name, data in files.items():
            _write_new(folder / name, [data])


def quarantine(directory: Path, names: Iterable[str]) -> Path:
    """Move what is damaged into a new folder beside it, so that nothing is lost.

    Args:
        directory: Where it is.
        names: Its files and folders, in the order in which they are moved; those that are not there
            are passed over.

    Returns:
        The new folder: ``damaged-1``, or the next number that is free.

    Raises:
        ResourceError: if the disk is full, broken or not writable.
    """
    places = (directory / f"{QUARANTINE_PREFIX}{number}" for number in itertools.count(1))
    place = next(path for path in places if not path.exists())
    make_directory(place)
    with writing(place):
        for name in names:
            with suppress(FileNotFoundError):
                (directory / name).rename(place / name)
        sync_directory(place)
        sync_directory(directory)
    return place


def remove_dir(path: Path) -> None:
    """Remove a folder so that at no time half of it stands under its name.

    Raises:
        ResourceError: if it cannot be removed.
    """
    with writing(path):
        doomed = _temporary(path.parent, path.name)
        path.rename(doomed)
        sync_directory(path.parent)
        shutil.rmtree(doomed)


def remove_file(path: Path) -> None:
    """Remove a file, durably, if it is there.

    Raises:
        ResourceError: if it cannot be removed.
    """
    with writing(path):
        path.unlink(missing_ok=True)
        sync_directory(path.parent)


def clean_leftovers(directory: Path) -> tuple[str, ...]:
    """Remove what killed writers left in ``directory``; what a living one writes stays.

    Returns:
        The names removed.
    """
    if not directory.is_dir():
        return ()
    found = sorted(path for path in directory.iterdir() if path.name.startswith(TEMPORARY_PREFIX))
    return tuple(path.name for path in found if _remove_leftover(path))


def _remove_leftover(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


class AppendFile:
    """A file that only grows; what was appended survives the death of the process at once.

    Only ``sync`` makes it survive a power failure.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)

    def append(self, data: bytes) -> None:
        """Add ``data`` at the end.

        Raises:
            ResourceError: if the disk is full, broken or not writable.
        """
        with writing(self.path, len(data)):
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        """Flush to the disk.

        Raises:
            ResourceError: if the disk refuses.
        """
        with writing(self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)
