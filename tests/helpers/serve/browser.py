"""The system's Chromium, driven by Playwright. What a page may never do fails the test at its end: errors in the
console, requests to others than its own server."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

AXE = Path(__file__).parents[3] / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60_000
"""Milliseconds until a test is told that something hangs."""
expect.set_options(timeout=PATIENCE)


def executable(playwright: Playwright) -> str:
    """The system's browser, or the one that `playwright install chromium` fetched."""
    own = playwright.chromium.executable_path
    found = next(filter(None, map(shutil.which, NAMES)), own if Path(own).exists() else None)
    if found is None:
        pytest.skip("there is no Chromium: `make browser` says how to get one")
    return found


@contextmanager
def open_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Containers have little shared memory; and for root Chromium has no sandbox.
        options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = playwright.chromium.launch(executable_path=executable(playwright), args=options)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """What went wrong in a page."""

    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def check(self) -> None:
        assert not self.complaints, self.complaints
        assert not self.strangers, self.strangers


@contextmanager
def watched_page(
    browser: Browser, url: str, *, is_server_lost: bool = False, is_first_visit: bool = False, **options: Any
) -> Iterator[Page]:
    """The playground at `url`, ready; `is_server_lost`: Chromium itself complains of requests that fail;
    `is_first_visit`: a race begins by itself."""
    context = browser.new_context(**options)
    if not is_first_visit:
        context.add_init_script("localStorage.setItem('stridelm-raced', 'yes')")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    watched = Watched()
    page.on("console", lambda message: watched.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: None if _is_own(request.url, url) else watched.strangers.append(request.url))
    page.goto(url)
    try:
        yield page
        if is_server_lost:
            watched.complaints = [each for each in watched.complaints if "Failed to load resource" not in each]
        watched.check()
    finally:
        context.close()


def _is_own(address: str, url: str) -> bool:
    return urlsplit(address)[:2] == urlsplit(url)[:2]


def serious_findings(page: Page, *rules: str) -> list[str]:
    """What axe-core says of the page as it is shown, once what moves has arrived: strides fade in. By all its rules, or
    by these."""
    if not AXE.exists():
        pytest.skip("there is no axe-core: `make browser` fetches it from npm")
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text() + "; 0")
    page.evaluate("() => Promise.allSettled(document.getAnimations().map((each) => each.finished))")
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{each['id']}: {each['help']} ({', '.join(str(node['target']) for node in each['nodes'][:4])})"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
