"""Verification of files by their sha256.

A verified file is not read again while its inode, modification time and size stay the same. Checks
of large files are remembered across processes.
"""

import hashlib
import time
from pathlib import Path

from qkvary.data.downloads import keep_in_cache
from qkvary.storage.errors import DamagedError
from qkvary.storage.folders import cache_directory
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.manifest import FileEntry

REMEMBERED_BYTES = 2**26
"""The minimum size from which checks are remembered on disk: smaller files are fast to check."""
_SETTLED_NANOSECONDS = 2_000_000_000
"""A file changed more recently could change again with the same timestamp."""

_checked: dict[str, tuple[list[int], str]] = {}


def verify_file(path: Path, entry: FileEntry, *, by_digest: bool = True) -> None:
    """Compare a file with its entry in a manifest.

    Args:
        path: The file.
        entry: Its entry.
        by_digest: Whether to compare the sha256; the size is always compared.

    Raises:
        DamagedError: if the file is missing or changed.
    """
    try:
        found = path.stat()
        if found.st_size != entry.size:
            raise DamagedError(f"expected {entry.size:,} bytes in {path}, got {found.st_size:,}")
        mark = [found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size]
        if not by_digest or _is_known(path, mark, entry.sha256):
            return
        now = time.time_ns()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    if digest != entry.sha256:
        raise DamagedError(f"{path} was changed")
    if now - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED_NANOSECONDS:
        _remember(path, mark, entry.sha256)


def _memory(path: Path) -> Path | None:
    cache = cache_directory()
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return cache / "checked" / f"{name}.json" if cache else None


def _is_known(path: Path, mark: list[int], sha256: str) -> bool:
    if _checked.get(str(path.resolve())) == (mark, sha256):
        return True
    memory = _memory(path) if mark[-1] >= REMEMBERED_BYTES else None
    if memory is None:
        return False
    try:
        return decode(memory.read_bytes()) == {"mark": mark, "sha256": sha256}
    except (OSError, ValueError):
        return False


def _remember(path: Path, mark: list[int], sha256: str) -> None:
    _checked[str(path.resolve())] = (mark, sha256)
    memory = _memory(path) if mark[-1] >= REMEMBERED_BYTES else None
    if memory is not None:
        # Without a writable cache, files are only checked more often.
        keep_in_cache(memory, encode({"mark": mark, "sha256": sha256}).encode())
