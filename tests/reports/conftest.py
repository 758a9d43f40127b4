"""A real Chromium for the tests of pages; what a page complains about fails its test."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
Open = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = os.environ.get("QKVARY_CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a file; complaints on the console and requests for anything else fail the test."""
    complaints: list[str] = []
    contexts = []

    def asked(url: str, path: Path) -> None:
        if not url.startswith(("data:image/png;", path.as_uri())):
            complaints.append(f"request: {url[:80]}")

    def opened(path: Path, width: int = 1280, colours: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=colours,  # type: ignore[arg-type]
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: asked(request.url, path))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
