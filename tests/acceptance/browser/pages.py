"""Helpers that open pages of the console, wait for their content, and save configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from playwright.sync_api import Locator, Page, expect

from tests.page_addresses import HTML_PAGES, address_of, parameters_of

#: For everything that is waited for: a machine may have no processor for half a minute.
PATIENCE_MS: Final = 120_000
#: Two keys that belong together come at once: the console waits for the second one for a moment only.
_KEYS: Final = """keys => keys.forEach(key => document.activeElement.dispatchEvent(
    new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))"""


def addresses_of_pages(done: Mapping[str, Any]) -> list[str]:
    """Return the address of every page of the site map that a link opens, for one action's objects.

    Pages of a simulation, a webhook or an audit entry have tests that make such an object.
    """
    given = {
        "action_id": done["id"],
        "trajectory_key": f"default/{done['trajectory']}",
        "task_key": f"default/{done['task']}",
        "number": "1",
    }
    return [
        address_of(page, given) for page in HTML_PAGES if set(parameters_of(page)) <= set(given)
    ]


def fits(page: Page) -> bool:
    """Say whether a page is no wider than its window."""
    return bool(
        page.evaluate(
            "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        )
    )


def expect_whole(page: Page, address: str) -> None:
    """Check what every page has: a heading, its place in the menu, and the width of its window."""
    expect(page.locator("h1")).to_be_attached()
    expect(page.locator('nav a[aria-current="page"]')).to_have_count(1)
    assert fits(page), address


def visit(page: Page, path: str) -> None:
    page.goto("/".join(page.url.split("/")[:3]) + path)


def hold(page: Page) -> None:
    """Pause a live page: a row that is drawn again between press and release of the button hears no click."""
    expect(page.locator("tg-live .word")).to_have_text("Live")
    page.keyboard.press("p")
    expect(page.locator("tg-live .word")).to_have_text("Paused")


def go(page: Page, key: str) -> None:
    """Press ``g`` and a letter."""
    page.evaluate(_KEYS, ["g", key])


def until(page: Page, path: str, seen: Callable[[Page], bool]) -> None:
    """Reload a page until it shows something: its rows are projected a moment later."""
    for _ in range(PATIENCE_MS // 250):
        visit(page, path)
        if seen(page):
            return
        page.wait_for_timeout(250)
    raise AssertionError(f"{path} never showed it:\n{page.inner_text('main')}")


def problem_on(page: Page, problem: str) -> Locator:
    """Open the Overview and return a problem of its list, once it is raised; the page is live."""
    visit(page, "/")
    row = page.locator(f'.problem[data-id="{problem}"]:not([data-state="cleared"])')
    expect(row).to_be_visible()
    return row


def press(row: Locator, verb: str) -> None:
    """Press the verb of a problem: one click from the list to the page that asks."""
    expect(row.locator(".verb")).to_have_text(verb)
    row.locator(".verb").click()
    expect(row.page.get_by_role("heading", name="Affected")).to_be_visible()


def apply(page: Page, text: str) -> None:
    """Review and save a text on the pages of the configuration."""
    visit(page, "/configuration/edit/")
    page.get_by_label("The configuration as YAML").fill(text)
    page.get_by_role("button", name="Review").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("it is in force")).to_be_visible()


def audited(page: Page, target: str, verb: str, by: str = "admin") -> None:
    """Check that the audit page names the actor and the verb."""
    visit(page, f"/audit/?target={target}")
    row = page.locator("#rows tbody tr", has_text=verb).first
    expect(row).to_contain_text(by)
    expect(row).to_contain_text("web")
