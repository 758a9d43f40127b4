"""Small downloads: only over https, limited in size and time, and cached."""

import http.client
import os
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import ClassVar

from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.errors import ResourceError

TIMEOUT_SECONDS = 15.0
"""The limit for the whole download."""

# Without other handlers, only https is opened or redirected to.
HANDLERS: tuple[type[urllib.request.BaseHandler], ...] = (
    urllib.request.ProxyHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPRedirectHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.UnknownHandler,
)
_CHUNK = 65_536


class DownloadError(RuntimeError):
    """A failed download; a retry may help."""

    exit_code: ClassVar[int] = 4


def keep_in_cache(path: Path, data: bytes) -> None:
    """Store valid data in the cache to speed up later starts."""
    # An unwritable cache only costs time: the data can be downloaded again.
    with suppress(ResourceError):
        make_directory(path.parent)
        atomic_write_file(path, data)


def is_offline() -> bool:
    """Return whether ``HF_HUB_OFFLINE`` is set, as the hub's own tools read it."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def fetch(url: str, *, limit: int, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Download a small file.

    Args:
        url: An https address.
        limit: The maximum number of bytes.
        timeout: Seconds for the whole download.

    Raises:
        FileNotFoundError: if the file does not exist.
        PermissionError: if it is not public.
        ValueError: if it is too large.
        DownloadError: for any other failure.
    """
    opener = urllib.request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "qkvary")]
    end = monotonic() + timeout
    try:
        response = opener.open(url, timeout=timeout)
        if response is None:
            raise DownloadError(f"cannot download {url}: only https is opened")
        with response:
            return _read(response, url, limit, end)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"cannot download {url}: {reason}") from error


def _read(response: http.client.HTTPResponse, url: str, limit: int, end: float) -> bytes:
    data = bytearray()
    while chunk := response.read1(_CHUNK):
        data += chunk
        if len(data) > limit:
            raise ValueError(f"expected at most {limit:,} bytes at {url}, got more")
        if monotonic() > end:
            raise TimeoutError("timed out")
    return bytes(data)


def _refused(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code in {404, 410}:
        return FileNotFoundError(url)
    if error.code in {401, 403}:
        return PermissionError(url)
    return DownloadError(f"cannot download {url}: the server answers {error.code} {error.reason}")
