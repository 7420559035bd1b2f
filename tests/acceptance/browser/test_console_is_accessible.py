"""Accessibility: axe-core finds no violation of WCAG 2.2 AA, and every page works by keyboard."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.browser.conftest import DESK, PHONE, Open, run
from tests.acceptance.browser.pages import addresses_of_pages, expect_whole
from tests.acceptance.up.conftest import Tangram
from tests.tiers import by_tier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
#: Colors in the middle of a transition have other contrasts than those of the design.
TRANSITIONS = """() => Promise.allSettled(document.getAnimations()
  .filter(one => Number.isFinite(one.effect.getComputedTiming().endTime))
  .map(one => one.finished))"""


def violations(page: Page) -> list[str]:
    page.wait_for_load_state("load")
    page.evaluate(FRAMES)  # what pages do on a change of size is done within a frame
    page.evaluate(TRANSITIONS)
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    page.evaluate(source)
    found: dict[str, Any] = page.evaluate(
        "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES
    )
    return [
        f"{one['id']}: {node['html'][:120]} {node['any'][:1]}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["light-desk", "dark-phone"]
)
def test_axe_finds_no_violation_on_any_page(
    open_page: Open, tangram: Tangram, scheme: str, size: dict[str, int]
) -> None:
    done = run(tangram, "true", trajectory="seen-2", step=1)
    page = open_page("/", viewport=size, color_scheme=scheme, reduced_motion="reduce")
    addresses = addresses_of_pages(done)
    # In every run each page in one of both ways.
    half = addresses[scheme == "dark" :: 2]
    for address in by_tier(half, half, addresses):
        page.goto(f"{tangram.access['url']}{address}")
        expect_whole(page, address)
        if page.locator("tg-live").count():
            # Figures are dimmed until they are live.
            expect(page.locator("tg-live")).to_have_attribute("data-is", "live")
        assert violations(page) == [], address


def test_the_palette_finds_pages_and_actions_by_keys_alone(
    open_page: Open, tangram: Tangram
) -> None:
    done = run(tangram, "true")
    page = open_page("/queues/")
    page.keyboard.press("Control+k")
    expect(page.locator("#palette-input")).to_be_focused()
    assert violations(page) == []
    page.keyboard.type("tasks")
    page.keyboard.press("Enter")
    expect(page).to_have_title("Tasks · Tangram")
    page.wait_for_load_state("load")  # before that its scripts hear no keys
    page.keyboard.press("Control+k")
    page.keyboard.type(done["id"])
    page.keyboard.press("Enter")
    expect(page.locator("#action-id")).to_have_text(done["id"])
    page.wait_for_load_state("load")
    page.keyboard.press("Control+k")
    page.keyboard.type("pause def")
    expect(page.get_by_role("option", name="Pause: default…")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Pause: pool default")


def test_a_term_shows_its_meaning_to_the_keyboard_and_escape_hides_it(open_page: Open) -> None:
    page = open_page("/workers/")
    page.get_by_role("link", name="Epoch", exact=True).focus()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("number of the present leadership")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.get_by_role("link", name="Leader", exact=True).hover()
    expect(tip).to_contain_text("the process whose loop decides now")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Epoch", exact=True).click()
    expect(page.locator("#epoch")).to_be_visible()


def test_markup_in_what_users_supply_stays_text(open_page: Open, tangram: Tangram) -> None:
    family, group = MARKUP, MARKUP[:60]
    done = run(tangram, "printf", "%s", MARKUP, family=family, group=group, metadata={"x": MARKUP})
    page = open_page(f"/actions/{done['id']}/")
    expect(page.locator("pre").first).to_contain_text("<script>alert(2)</script>")
    page.keyboard.press("Control+k")
    page.locator("#palette-input").fill(MARKUP)
    expect(page.locator("#palette-status")).to_contain_text("<img src=x")
    assert page.locator('img[src="x"]').count() == 0


def test_the_past_is_drawn_and_a_link_freezes_it(open_page: Open, tangram: Tangram) -> None:
    run(tangram, "true")
    page = open_page("/?range=3600")
    expect(page.locator("#throughput canvas")).to_be_visible()
    expect(page.locator("#samples")).to_contain_text("1 h")
    page.locator("#freeze").click()
    expect(page.get_by_role("link", name="Continue from now")).to_be_visible()
    assert "to=" in page.url


def test_a_file_is_read_from_the_running_stack(open_page: Open, tangram: Tangram) -> None:
    done = run(tangram, "true", trajectory="file-1")
    page = open_page("/actions/?trajectory=file-1")
    expect(page.locator(f'#rows tr[data-id="{done["id"]}"]')).to_be_visible()
    page.locator("#export summary").click()
    with page.expect_download() as begun:
        page.get_by_role("link", name="CSV", exact=True).click()
    text = begun.value.path().read_text()
    assert done["id"] in text
