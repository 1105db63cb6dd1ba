"""Photograph the playground for the docs: docs/playground-VIEW-THEME.png, from a real server with the built-in model.

make screenshots
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests" / "helpers" / "serve"))
from browser import open_browser, watched_page  # noqa: E402
from real_server import serve_in_process  # noqa: E402

REPORT = DOCS.parent / "bench" / "results" / "bench-quick.json"
SIZE = {"width": 1280, "height": 1000}


def race(page: Page) -> None:
    """The race that a first visit begins with."""
    page.wait_for_selector("#race-best svg")


def hood(page: Page) -> None:
    page.click("nav >> text=Under the hood")
    for _ in range(6):
        page.click("#hood >> text=Next")


def chat(page: Page) -> None:
    page.click("nav >> text=Chat")
    for text in ("Name three rivers of Europe.", "Which of them is the longest?"):
        page.fill("#chat-text", text)
        page.keyboard.press("Enter")
        page.wait_for_selector("#chat-send:enabled")


def bench(page: Page) -> None:
    page.click("nav >> text=Benchmarks")
    page.set_input_files("#bench input[type=file]", REPORT)
    page.locator("#bench svg").first.scroll_into_view_if_needed()
    page.mouse.wheel(0, 500)


with (
    tempfile.TemporaryDirectory() as folder,
    open_browser() as browser,
    serve_in_process("smollm2", Path(folder) / "log", OMP_NUM_THREADS="2") as server,
):
    for theme in ("light", "dark"):
        with watched_page(browser, f"{server.url}/", is_first_visit=True, color_scheme=theme, viewport=SIZE) as page:
            page.wait_for_selector("body[data-ready]")
            for show in (race, hood, chat, bench):
                show(page)
                page.wait_for_timeout(300)  # the last stride fades in
                page.screenshot(path=DOCS / f"playground-{show.__name__}-{theme}.png")
