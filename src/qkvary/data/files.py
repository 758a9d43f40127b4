"""Files of data sets: found on this machine, decompressed within limits, downloaded."""

import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path

from qkvary.data.downloads import TIMEOUT_SECONDS, DownloadError, fetch
from qkvary.data.folders import cache_directory, data_root
from qkvary.storage.errors import DamagedError

_GZIP = 31
"""Window bits with which zlib expects the header of gzip."""


def find_file(folder: str, file: str, endings: Sequence[str] = ("",)) -> Path | None:
    """Return a file below ``QKVARY_DATA`` or in the cache, None if it is in neither.

    Args:
        folder: The folder of the data set.
        file: The name of the file.
        endings: What may follow the name, the first that exists is taken.
    """
    bases = [base for base in (data_root(), cache_directory()) if base is not None]
    paths = (base / folder / f"{file}{end}" for base in bases for end in endings)
    return next((path for path in paths if path.is_file()), None)


def decompress(data: bytes, where: str, *, limit: int) -> bytes:
    """Return the contents of a file that may be compressed, as its name says (.gz, .xz).

    Args:
        data: The file.
        where: Its path or address.
        limit: The maximum number of bytes of a decompressed file.

    Raises:
        DamagedError: if it is of another format, incomplete or too large.
    """
    if not where.endswith((".gz", ".xz")):
        return data
    is_gzip = where.endswith(".gz")
    try:
        # One byte more than is allowed shows that there is more.
        unpack = zlib.decompressobj(_GZIP) if is_gzip else lzma.LZMADecompressor()
        plain, is_whole = unpack.decompress(data, limit + 1), unpack.eof
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        kind = "gzip" if is_gzip else "xz"
        raise DamagedError(f"expected {kind} data in {where}, got other data: {error}") from None
    if len(plain) > limit:
        raise DamagedError(f"expected at most {limit:,} bytes in {where}, got more")
    if not is_whole:
        raise DamagedError(f"{where} is incomplete: its compressed data ends early")
    if unpack.unused_data:
        raise DamagedError(f"expected one compressed file in {where}, got more data behind it")
    return plain


def download(url: str, put: str, *, limit: int, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Download a file of a data set.

    Args:
        url: Its address.
        put: What to do instead, for the message.
        limit: The maximum number of bytes.
        timeout: Seconds for the whole download.

    Raises:
        DownloadError: if it fails.
    """
    try:
        return fetch(url, limit=limit, timeout=timeout)
    except (FileNotFoundError, PermissionError, ValueError, DownloadError) as error:
        said = error if isinstance(error, DownloadError) else f"cannot download {url}: {error}"
        raise DownloadError(f"{said}; or {put}") from error
