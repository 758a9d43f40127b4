"""Finds files of data sets on this machine, decompresses them within limits, and downloads them."""

import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path

from qkvary.data.downloads import TIMEOUT_SECONDS, DownloadError, fetch, is_offline, keep_in_cache
from qkvary.storage.environment import cache_directory, data_root
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file


def local_paths(name: str) -> list[Path]:
    """Return the paths of a file or folder below ``QKVARY_DATA`` and in the cache."""
    return [base / name for base in (data_root(), cache_directory()) if base is not None]


def find_file(folder: str, files: Sequence[str]) -> Path | None:
    """Return the first of these files that is below ``QKVARY_DATA`` or in the cache, or None."""
    paths = (place / file for place in local_paths(folder) for file in files)
    return next((path for path in paths if path.is_file()), None)


def decompress(data: bytes, where: str, *, limit: int) -> bytes:
    """Return the decompressed contents of a file if its name ends in .gz or .xz, else ``data``."""
    if not where.endswith((".gz", ".xz")):
        return data
    unpack = gzip.open if where.endswith(".gz") else lzma.open
    try:
        with unpack(io.BytesIO(data)) as file:
            # One byte more than allowed shows whether the file is too large.
            plain = file.read(limit + 1)
    except (OSError, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DamagedError(f"{where} cannot be unpacked: {error}") from None
    if len(plain) > limit:
        raise DamagedError(f"expected at most {limit:,} bytes in {where}, got more")
    return plain


def download(
    url: str,
    put: str,
    *,
    name: str,
    limit: int,
    sha256: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> bytes:
    """Download a file of a data set; without ``sha256``, the caller verifies it.

    ``put`` tells the user, in error messages, where to put the file.
    """
    if is_offline():
        raise UsageError(
            f"{name} is not on this machine, and downloads are off (HF_HUB_OFFLINE): {put}"
        )
    try:
        data = fetch(url, limit=limit, timeout=timeout)
    except (FileNotFoundError, PermissionError, ValueError, DownloadError) as error:
        said = error if isinstance(error, DownloadError) else f"cannot download {url}: {error}"
        raise DownloadError(f"{said}; or {put}") from error
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise DownloadError(f"{url} has changed: its sha256 is not the expected one")
    return data


def load_published(
    folder: str, files: Sequence[str], url: str, sha256: str, *, name: str, put: str, limit: int
) -> tuple[bytes, str]:
    """Return the contents of a published file, and its path or URL.

    The first of ``files`` that exists in ``folder`` is used. If none exists, the file is downloaded
    and kept in the cache.
    """
    path = find_file(folder, files)
    if path is None:
        data = download(url, put, name=name, limit=limit, sha256=sha256)
        if cache := cache_directory():
            keep_in_cache(cache / folder / url.rpartition("/")[2], data)
        return data, url
    data = read_file(path, limit=limit)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise DamagedError(
            f"expected {name} with sha256 {sha256[:12]} in {path}, got {found[:12]}: remove or "
            "replace the file"
        )
    return data, str(path)
