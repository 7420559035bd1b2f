"""A signed-in browser on the running stack; errors in its console fail the test."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.acceptance.browser.pages import PATIENCE_MS
from tests.acceptance.up.conftest import Tangram
from tests.tiers import in_ci

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1360, "height": 900}
expect.set_options(timeout=PATIENCE_MS)

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium. Not for longer than a module: while it is open an event loop runs in this thread."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        if in_ci():
            pytest.fail("on CI a missing browser is a failure: apt-get install chromium")
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def cookies() -> dict[str, Any]:
    """What signing in left; the link that `up` printed works once."""
    return {}


@pytest.fixture(scope="module")
def signed_in(browser: Browser, tangram: Tangram, cookies: dict[str, Any]) -> Any:
    """Cookies of a session that began with the link that `up` printed."""
    if not cookies:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(entry_link(tangram))
        expect(page).to_have_title("Overview · Tangram")
        cookies.update(context.storage_state())
        context.close()
    return cookies


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """Errors and warnings of the browser's console; a test fails when there are any."""
    found: list[str] = []
    yield found
    assert found == []


@pytest.fixture
def open_page(
    browser: Browser, signed_in: Any, tangram: Tangram, complaints: list[str]
) -> Iterator[Open]:
    """Open a page of the console, signed in."""
    contexts: list[BrowserContext] = []

    def note(kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            complaints.append(f"{kind}: {text}")

    def open_(path: str, **options: Any) -> Page:
        context = browser.new_context(storage_state=signed_in, **{"viewport": DESK, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: note(said.type, said.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(tangram.access["url"] + path)
        return page

    yield open_
    for context in contexts:
        context.close()


def entry_link(tangram: Tangram) -> str:
    found = re.search(r"Open\s+(\S+)", "".join(tangram.said))
    assert found is not None
    return found[1]


def run(tangram: Tangram, *command: str, **fields: Any) -> Any:
    """Run a command as an action and return it, finished."""
    body = {"task": "seen", "kind": "exec", "cost": {"cpu": 0.1}, "exec": {"command": command}}
    return tangram.post("/api/v1/actions?wait=60", {**body, **fields})
