"""Small files from the net: over https only, limited in size and time, and kept in a cache."""

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
"""For the whole download."""

# Without a handler for it, nothing else than https is opened, redirected to or fallen back on.
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
    """The net did not give what it should have; trying again may help."""

    exit_code: ClassVar[int] = 4


def cache_directory() -> Path | None:
    """Where downloads are kept: ``$QKVARY_CACHE``, or ``qkvary`` in the user's folder for caches.

    Returns:
        ``None`` where the user has no folder at all.
    """
    for name, below in (("QKVARY_CACHE", "."), ("XDG_CACHE_HOME", "qkvary")):
        if os.environ.get(name):
            return Path(os.environ[name]) / below
    try:
        return Path.home() / ".cache" / "qkvary"
    except RuntimeError:
        return None


def keep_in_cache(path: Path, data: bytes) -> None:
    """Keep what was downloaded or found out, and is good, so that the next start is quicker."""
    # It can be downloaded again: a cache that nobody can write is slow, not broken.
    with suppress(ResourceError):
        make_directory(path.parent)
        atomic_write_file(path, data)


def is_offline() -> bool:
    """Whether the user has switched the hub off, as its own tools understand it."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def fetch(url: str, *, limit: int, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Download a small file.

    Args:
        url: An https address.
        limit: Bytes that it has at most.
        timeout: Seconds for all of it.

    Raises:
        FileNotFoundError: if there is no such file.
        PermissionError: if it is not for everybody.
        ValueError: if it is larger.
        DownloadError: for everything else that goes wrong on the way.
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
            raise TimeoutError("it takes too long")
    return bytes(data)


def _refused(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code in {404, 410}:
        return FileNotFoundError(url)
    if error.code in {401, 403}:
        return PermissionError(url)
    return DownloadError(f"cannot download {url}: the server answers {error.code} {error.reason}")
