"""Downloads from a local server: successes, rejections and their messages."""

import http.server
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from huggingface_hub import constants

from qkvary.data import downloads
from qkvary.data.downloads import DownloadError, cache_only, fetch, find_hub_problem

ANSWERS: dict[str, tuple[int, bytes]] = {
    "/good": (200, b"x" * 1000),
    "/missing": (404, b""),
    "/gone": (410, b""),
    "/gated": (401, b""),
    "/secret": (403, b""),
    "/broken": (500, b""),
}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/redirect/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/redirect/"))
            self.end_headers()
            return
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.send_response(ANSWERS[self.path][0])
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open http too, as only tests do, and through no proxy."""
    monkeypatch.setattr(
        downloads, "HANDLERS", (*downloads.HANDLERS[1:], urllib.request.HTTPHandler)
    )


@pytest.mark.usefixtures("plain")
def test_a_file_arrives_whole_or_is_too_large(server: str) -> None:
    for address in (f"{server}/good", f"{server}/redirect/{server}/good"):
        assert fetch(address, limit=1000) == b"x" * 1000
    with pytest.raises(ValueError, match=r"expected at most 999 bytes at http.*/good, got more"):
        fetch(f"{server}/good", limit=999)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("missing", FileNotFoundError, "/missing"),
        ("gone", FileNotFoundError, "/gone"),
        ("gated", PermissionError, "/gated"),
        ("secret", PermissionError, "/secret"),
        ("broken", DownloadError, "cannot download .*: the server answers 500 Internal"),
    ],
)
def test_server_errors(server: str, path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fetch(f"{server}/{path}", limit=1000)


def test_only_https_is_opened(server: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for url in (f"{server}/good", f"file://{tmp_path}/config.json", "ftp://127.0.0.1/config.json"):
        with pytest.raises(DownloadError, match=r"cannot download .*: unknown url type: "):
            fetch(url, limit=1000)


@pytest.mark.usefixtures("plain")
def test_the_hub_is_asked_once(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for path in ("/good", "/missing", "/broken"):
        # Any answer is an answer.
        monkeypatch.setenv("HF_ENDPOINT", server + path)
        assert find_hub_problem() is None
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert "refused" in str(find_hub_problem())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_hub_problem() == "HF_HUB_OFFLINE is set"


def test_the_libraries_use_their_cache_where_the_hub_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with cache_only():
        with pytest.raises(ConnectionError, match="someone/texts"):
            datasets.load_dataset("someone/texts", streaming=True)
        with pytest.raises(huggingface_hub.errors.OfflineModeIsEnabled):
            huggingface_hub.HfApi().dataset_info("someone/texts")
    assert not constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE
