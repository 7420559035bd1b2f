"""Fleets in Chromium over a running stack with modelled engines: busy, drained, one engine killed, and a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from subprocess import Popen

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.acceptance.browser.conftest import DESK, PHONE, Open
from tests.acceptance.browser.fleets import generate, modelled_fleet
from tests.acceptance.browser.pages import fits
from tests.acceptance.browser.test_console_is_accessible import violations
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLEET = "pages-8B"


@pytest.fixture(scope="module")
def engines(tangram: Tangram, admin_token: str) -> Iterator[list[Popen[bytes]]]:
    """Two engines behind a fleet that has sampled for two trajectories."""
    with modelled_fleet(tangram, admin_token, FLEET) as found:
        for trajectory in ("pages-1", "pages-2"):
            generate(tangram, FLEET, trajectory, tokens=40)
        yield found


def whole(page: Page) -> None:
    """Check that a page is accessible, and fits each screen."""
    assert violations(page) == []
    for size in (PHONE, DESK):
        page.set_viewport_size(ViewportSize(width=size["width"], height=size["height"]))
        assert fits(page), size


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_fleet_shows_its_workers_and_a_dry_run_changes_nothing(
    open_page: Open, engines: list[Popen[bytes]], scheme: str
) -> None:
    page = open_page(f"/fleets/{FLEET}/", color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator("#workers tbody tr")).to_have_count(2)
    expect(page.locator("#workers")).to_contain_text("accepted, order unknown")
    expect(page.locator("#lengths")).to_contain_text("default/pages-1")
    whole(page)
    page.get_by_role("link", name="Replan (dry run)").click()
    expect(page.locator("#plan")).to_contain_text("nothing was changed")
    expect(page.locator("#plan p").first).to_contain_text("Nothing would change.")
    whole(page)
    page.locator("#plan").get_by_role("link", name="Close").click()
    page.locator("#lengths tr", has_text="pages-1").get_by_role("link", name="Why here").click()
    expect(page.locator("#why")).to_contain_text("Generations before it")
    whole(page)


def test_all_workers_are_drained_by_buttons_and_the_page_says_that_generations_wait(
    open_page: Open, engines: list[Popen[bytes]]
) -> None:
    undo = []
    page = open_page(f"/fleets/{FLEET}/")
    for worker in ("w1", "w2"):
        page.locator("#workers tr", has_text=worker).get_by_role("link", name="Drain…").click()
        expect(page.locator("pre.command")).to_have_text(f"tangram fleet drain {FLEET} {worker}")
        assert violations(page) == []
        page.get_by_role("button", name="Drain", exact=True).click()
        undo.append(page.get_by_role("link", name="Undo: Undrain").get_attribute("href") or "")
        page.get_by_role("link", name=f"Back to {FLEET}/{worker}").click()
    expect(page.get_by_role("alert")).to_contain_text("No worker takes generations")
    expect(page.locator("#workers .chip[data-is=drained]")).to_have_count(2)
    whole(page)
    for address in undo:
        page.goto("/".join(page.url.split("/")[:3]) + address)
        page.get_by_role("button", name="Undrain").click()
        expect(page.get_by_role("heading", name="Done")).to_be_visible()


def test_an_engine_that_is_killed_is_unhealthy_and_the_page_says_why(
    open_page: Open, engines: list[Popen[bytes]]
) -> None:
    page = open_page(f"/fleets/{FLEET}/")
    expect(page.locator("#workers .chip[data-is=ready]")).to_have_count(2)
    engines[1].kill()
    row = page.locator("#workers tr", has_text="w2")
    expect(row).to_contain_text("3 health checks failed")  # by itself: the page is not loaded again
    expect(page.locator("#fresh")).to_contain_text("1 of 2 take generations; 1 unhealthy")
    whole(page)
