"""Downloads small files, only over https and within limits of size and time, and caches them."""

import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import ClassVar

from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.errors import ResourceError

TIMEOUT_SECONDS = 15.0
HUB = "https://huggingface.co"
HUB_SECONDS = 5.0
"""Timeout in seconds of the request that tests whether the hub can be reached."""

# Without the other default handlers, only https can be opened or redirected to.
HANDLERS: tuple[type[urllib.request.BaseHandler], ...] = (
    urllib.request.ProxyHandler,
    urllib.request.HTTPSHandler,
    urllib.request.HTTPRedirectHandler,
    urllib.request.HTTPDefaultErrorHandler,
    urllib.request.HTTPErrorProcessor,
    urllib.request.UnknownHandler,
)
_CHUNK = 65_536
_OFFLINE_FLAGS = (
    ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_HUB_OFFLINE"),
    ("datasets.config", "HF_DATASETS_OFFLINE"),
)
"""The module and the name of each variable that the libraries set when they are imported. The
variables get their values from ``HF_HUB_OFFLINE``."""


class DownloadError(RuntimeError):
    """A failed download; a retry may help."""

    exit_code: ClassVar[int] = 4


def keep_in_cache(path: Path, data: bytes) -> None:
    """Store valid data in the cache to speed up later starts."""
    # An unwritable cache only costs time, because the data can be downloaded again.
    with suppress(ResourceError):
        make_directory(path.parent)
        atomic_write_file(path, data)


def is_offline() -> bool:
    """Return whether ``HF_HUB_OFFLINE`` is true, by the rules of the hub's own tools."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def hub_address() -> str:
    """Return the address of the hub: the value of ``HF_ENDPOINT`` if it is set, else ``HUB``."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB


def find_hub_problem() -> str | None:
    """Return the reason that the hub cannot be reached, or ``None``.

    Call this before every use of the hub's libraries. Otherwise the libraries would retry for more
    than a minute.
    """
    if is_offline():
        return "HF_HUB_OFFLINE is set"
    try:
        # HANDLERS open only https; other endpoints are left to the libraries.
        request = urllib.request.Request(hub_address(), method="HEAD")  # noqa: S310
        response = _make_opener().open(request, timeout=HUB_SECONDS)
        if response is not None:
            response.close()
    except urllib.error.HTTPError as error:
        error.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", None) or error) or type(error).__name__
    return None


@contextmanager
def cache_only() -> Generator[None]:
    """Let the hub's libraries use only their cache, as with ``HF_HUB_OFFLINE``."""
    places = [(sys.modules.get(module), name) for module, name in _OFFLINE_FLAGS]
    before = [(module, name, getattr(module, name)) for module, name in places if module]
    for module, name, _ in before:
        setattr(module, name, True)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _make_opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in HANDLERS:
        opener.add_handler(handler())
    opener.addheaders = [("User-Agent", "qkvary")]
    return opener


def fetch(url: str, *, limit: int, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Download a small file. ``timeout`` limits the whole download, in seconds.

    The error is a ``FileNotFoundError`` if the file is missing, a ``PermissionError`` if it is not
    public, a ``ValueError`` if it is too large, and a ``DownloadError`` for any other failure.
    """
    end = monotonic() + timeout
    try:
        response = _make_opener().open(url, timeout=timeout)
        if response is None:
            raise DownloadError(f"cannot download {url}: only https addresses are allowed")
        data = bytearray()
        with response:
            while chunk := response.read1(_CHUNK):
                data += chunk
                if len(data) > limit:
                    raise ValueError(f"expected at most {limit:,} bytes at {url}, got more")
                if monotonic() > end:
                    raise TimeoutError("timed out")
        return bytes(data)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in {404, 410}:
            raise FileNotFoundError(url) from error
        if error.code in {401, 403}:
            raise PermissionError(url) from error
        said = f"the server answers {error.code} {error.reason}"
        raise DownloadError(f"cannot download {url}: {said}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"cannot download {url}: {reason}") from error
