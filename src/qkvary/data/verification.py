"""Verification of files against a manifest, with the position of a change.

A verified file is not read again while its inode, modification time and size stay the same. Checks
of large files are remembered across processes.
"""

import hashlib
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from qkvary.data.downloads import keep_in_cache
from qkvary.storage.errors import DamagedError
from qkvary.storage.folders import cache_directory
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.manifest import Manifest

BLOCK_BYTES = 2**20
"""The precision with which damage is located."""
REMEMBERED_BYTES = 2**26
"""The minimum size from which checks are remembered on disk: smaller files are fast to check."""
_SETTLED_NANOSECONDS = 2_000_000_000
"""A file changed more recently could change again with the same timestamp."""
_CHUNK = 2**20

_checked: dict[str, tuple[list[int], str]] = {}


def block_digests(data: bytes | memoryview) -> list[str]:
    """Return a short digest of every block, to locate a damaged one."""
    view = memoryview(data)
    return [
        _short_digest(view[start : start + BLOCK_BYTES])
        for start in range(0, len(data), BLOCK_BYTES)
    ]


def _short_digest(block: bytes | memoryview) -> str:
    return f"{zlib.crc32(block):08x}"


def verify_file(
    directory: Path, name: str, manifest: Manifest, *, blocks: str, by_digest: bool = True
) -> None:
    """Compare a file with its entry in the manifest.

    Args:
        directory: The folder.
        name: The name of the file.
        manifest: The manifest of the folder.
        blocks: The file of the folder with the block digests.
        by_digest: Whether to compare the sha256; the size is always compared.

    Raises:
        DamagedError: if the file is missing or changed; the message gives the first changed byte.
    """
    path, entry = directory / name, manifest.files[name]
    try:
        found = path.stat()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    if found.st_size != entry.size:
        raise DamagedError(
            f"expected {entry.size:,} bytes in {path}, got {found.st_size:,}"
            f"{_place(directory, name, manifest, blocks)}"
        )
    mark = [found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size]
    if not by_digest or _is_known(path, mark, entry.sha256):
        return
    now, digest = time.time_ns(), hashlib.sha256()
    try:
        for chunk in _chunks(path):
            digest.update(chunk)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    if digest.hexdigest() != entry.sha256:
        raise DamagedError(f"{path} was changed{_place(directory, name, manifest, blocks)}")
    if now - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED_NANOSECONDS:
        _remember(path, mark, entry.sha256)


def _chunks(path: Path, size: int = _CHUNK) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(size):
            yield chunk


def _place(directory: Path, name: str, manifest: Manifest, blocks: str) -> str:
    """Return the position of the first changed block, if it is known."""
    with suppress(DamagedError, ValueError, OSError, AttributeError):
        listed = cast("dict[str, Any]", decode(manifest.read(directory, blocks))).get(name)
        if listed is None:
            return ""
        number = -1
        for number, chunk in enumerate(_chunks(directory / name, BLOCK_BYTES)):
            if number >= len(listed) or _short_digest(chunk) != listed[number]:
                return f": first between byte {number * BLOCK_BYTES:,} and the next megabyte"
        return f": it ends before byte {(number + 1) * BLOCK_BYTES:,}"
    return ""


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
